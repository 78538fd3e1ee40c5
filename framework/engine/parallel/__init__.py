"""GPUs of one instance that share a step: data-parallel ranks, pipeline stages, streams on shares of the SMs."""
