"""What is simulated: GPUs, models, parallelism, clusters."""
