"""What a run is for, and how it is searched."""
