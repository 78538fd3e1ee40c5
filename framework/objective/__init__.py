"""What a run is measured for, and how that is searched."""
