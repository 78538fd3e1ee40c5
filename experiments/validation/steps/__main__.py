"""`python -m experiments.validation.steps`."""

from experiments.validation.steps.command import main

if __name__ == "__main__":
    main.start()
