"""`python -m experiments.steps`."""

from experiments.steps.command import main

if __name__ == "__main__":
    main.start()
