"""`python -m experiments.placement`."""

from experiments.placement.command import main

if __name__ == "__main__":
    main.start()
