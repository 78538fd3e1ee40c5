"""Scheduling policies, one file a system."""
