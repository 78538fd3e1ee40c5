"""What Hydra's launchers share here: cheap composition, and jobs in processes that may die."""
