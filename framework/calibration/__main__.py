"""`python -m framework.calibration`."""

from framework.calibration.command import main

if __name__ == "__main__":
    main.start()
