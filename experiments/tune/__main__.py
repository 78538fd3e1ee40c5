"""`python -m experiments.tune`."""

from experiments.tune.command import main

if __name__ == "__main__":
    main.start()
