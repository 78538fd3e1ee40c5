"""`python -m experiments.table`."""

from experiments.table.command import main

if __name__ == "__main__":
    main.start()
