"""`python -m experiments.validation.fidelity`."""

from experiments.validation.fidelity.command import main

if __name__ == "__main__":
    main.start()
