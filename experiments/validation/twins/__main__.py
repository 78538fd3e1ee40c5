"""`python -m experiments.validation.twins`."""

from experiments.validation.twins.command import main

if __name__ == "__main__":
    main.start()
