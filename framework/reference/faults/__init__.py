"""Crashes of instances, and requests that wait for their return."""
