"""`python -m framework.timing.microbench`."""

from framework.timing.microbench.command import main

if __name__ == "__main__":
    main.start()
