"""One request: arrival, queue, preemption, pause, end."""
