"""One request: arrival, queue, preemption, pause and end."""
