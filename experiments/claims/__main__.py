"""`python -m experiments.claims`."""

from experiments.claims.command import main

if __name__ == "__main__":
    main.start()
