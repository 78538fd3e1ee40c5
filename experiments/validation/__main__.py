"""How accurate servelab is, and how fast. A checkout has these commands, a wheel does not.

    python -m experiments.validation bench       requests simulated per CPU second
    python -m experiments.validation claims      what papers claim, next to what is simulated in their regimes
    python -m experiments.validation defaults    each policy as it is shipped against the best of a short search
    python -m experiments.validation fidelity    measured deployments next to their simulation
    python -m experiments.validation given       measured rows that files hold next to what default settings say
    python -m experiments.validation optimum     the best of all configurations of a space, and how near searches come
    python -m experiments.validation steps       step times next to layers measured on an H100 and an H200
    python -m experiments.validation twins       whether fitted traces tell what their recordings tell

Each has a --help of its own.
"""

from framework.cli.command import Menu

_NAMES = ("bench", "claims", "defaults", "fidelity", "given", "optimum", "steps", "twins")
main = Menu(__doc__, {name: f"experiments.validation.{name}.command" for name in _NAMES})

if __name__ == "__main__":
    main.start()
