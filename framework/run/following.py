"""Callbacks of Hydra that hear of each job of a sweep, in the process of the command."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback


class Follower(Callback):
    """Hears of a job from its launcher; `on_job_end` is called where the job ran."""

    @abstractmethod
    def follow(self, returned: JobReturn) -> None:
        """A job has ended."""


def follow(callbacks: Sequence[Any], returned: JobReturn) -> None:
    """Tell the followers among these callbacks that a job has ended."""
    for one in callbacks:
        if isinstance(one, Follower):
            one.follow(returned)
