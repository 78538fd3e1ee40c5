"""Measures kernels on the GPU of this machine."""
