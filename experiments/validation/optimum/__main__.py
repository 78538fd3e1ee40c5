"""`python -m experiments.validation.optimum`."""

from experiments.validation.optimum.command import main

if __name__ == "__main__":
    main.start()
