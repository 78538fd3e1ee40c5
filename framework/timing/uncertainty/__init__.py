"""Uncertain step times: their error by class of deployments, and step times scaled by a factor."""
