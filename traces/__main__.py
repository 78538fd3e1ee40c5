"""Traces from the command line.

    python -m traces fetch [NAME]           download a public trace, or list what there is
    python -m traces check FILE             say how a file is read: format, unit, sessions, prefixes, doubts
    python -m traces describe NAME|FILE     show what a trace looks like, alone or with its fitted trace
    python -m traces fit FILE               make the fitted trace of a trace

Each has a --help of its own.
"""

from framework.cli.command import Menu

main = Menu(__doc__, {name: f"traces.{name}" for name in ("fetch", "check", "describe", "fit")})

if __name__ == "__main__":
    main.start()
