"""Workloads drawn from distributions: arrivals, lengths, sessions; published ones; ServeGen's clients."""
