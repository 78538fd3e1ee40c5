"""`python -m experiments.validation.bench`."""

from experiments.validation.bench.command import main

if __name__ == "__main__":
    main.start()
