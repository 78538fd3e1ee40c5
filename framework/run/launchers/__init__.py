"""What the launchers of Hydra share here: cheap composition, and jobs in processes that may die."""
