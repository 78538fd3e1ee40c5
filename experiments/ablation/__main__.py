"""`python -m experiments.ablation`."""

from experiments.ablation.command import main

if __name__ == "__main__":
    main.start()
