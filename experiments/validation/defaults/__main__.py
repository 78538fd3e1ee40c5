"""`python -m experiments.validation.defaults`."""

from experiments.validation.defaults.command import main

if __name__ == "__main__":
    main.start()
