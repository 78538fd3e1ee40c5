"""Hydra takes launchers from the namespace package `hydra_plugins` alone; this is the project's portion of it."""
