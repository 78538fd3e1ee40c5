"""`python -m experiments.validation.claims`."""

from experiments.validation.claims.command import main

if __name__ == "__main__":
    main.start()
