"""`python -m experiments.curve`."""

from experiments.curve.command import main

if __name__ == "__main__":
    main.start()
