"""`python -m experiments.twins`."""

from experiments.twins.command import main

if __name__ == "__main__":
    main.start()
