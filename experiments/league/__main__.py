"""`python -m experiments.league`."""

from experiments.league.command import main

if __name__ == "__main__":
    main.start()
