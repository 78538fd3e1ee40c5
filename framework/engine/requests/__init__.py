"""A request's arrival, queue, preemption, pause and end."""
