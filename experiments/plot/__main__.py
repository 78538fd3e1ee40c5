"""`python -m experiments.plot`."""

from experiments.plot.command import main

if __name__ == "__main__":
    main.start()
