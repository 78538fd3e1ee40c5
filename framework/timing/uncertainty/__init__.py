"""Step times that are off: by how much, by class of deployments, and all of them so many times as long."""
