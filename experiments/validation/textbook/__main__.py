"""`python -m experiments.validation.textbook`."""

from experiments.validation.textbook.command import main

if __name__ == "__main__":
    main.start()
