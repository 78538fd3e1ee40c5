"""From kernel measurements to the profile of a model on a GPU."""
