"""What a study shows in a browser."""
