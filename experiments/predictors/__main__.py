"""`python -m experiments.predictors`."""

from experiments.predictors.command import main

if __name__ == "__main__":
    main.start()
