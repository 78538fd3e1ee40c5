"""`python -m experiments.optimum`."""

from experiments.optimum.command import main

if __name__ == "__main__":
    main.start()
