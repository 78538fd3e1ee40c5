"""`python -m experiments.fidelity`."""

from experiments.fidelity.command import main

if __name__ == "__main__":
    main.start()
