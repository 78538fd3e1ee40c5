"""`python -m experiments.textbook`."""

from experiments.textbook.command import main

if __name__ == "__main__":
    main.start()
