"""`python -m experiments.validation.given`."""

from experiments.validation.given.command import main

if __name__ == "__main__":
    main.start()
