"""`python -m experiments.guide`."""

from experiments.guide.command import main

if __name__ == "__main__":
    main.start()
