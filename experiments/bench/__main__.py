"""`python -m experiments.bench`."""

from experiments.bench.command import main

if __name__ == "__main__":
    main.start()
