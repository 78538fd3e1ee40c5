"""The two ways a run can end early, told apart from bugs."""


class InputError(Exception):
    """What the user gave cannot be used. One line: what, where, what to do. `run.py` prints it and exits with 2."""


class PolicyError(InputError):
    """A policy returned something the cluster cannot do. Names the policy, the hook and the value."""


class InvariantError(Exception):
    """The engine broke one of its own invariants: a bug in the framework, never the user's fault."""


class JobError(Exception):
    """A bug that showed in another process. The message is the traceback there."""
