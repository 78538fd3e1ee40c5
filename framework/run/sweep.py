"""Many configurations through one of Hydra's launchers, each run at most once (`framework.run.store`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode

from framework.cli.arguments import name_files
from framework.cli.conf import CONF
from framework.cli.explain import explain
from framework.errors import hook_noted
from framework.run.course import course, store_of
from framework.run.following import Follower
from framework.run.job import study_job
from framework.run.store import Record


@dataclass(frozen=True)
class Outcome:
    """The outcome of one configuration: its record, or one line that says why there is none."""

    overrides: tuple[str, ...]
    record: Record | None
    refusal: str | None


class Sweep:
    """Runs configurations that share `overrides`, which may name a launcher (hydra/launcher=joblib).

    Workers persist between calls if the launcher keeps them. The launcher's own files go below `directory`. Raises
    Hydra's errors for overrides that do not compose.
    """

    def __init__(self, overrides: Sequence[str], directory: Path) -> None:
        own = (
            f"hydra.sweep.dir='{directory.absolute()}'",
            "hydra.sweep.subdir=.",
            "hydra.output_subdir=null",
            "hydra/job_logging=none",
            "hydra/hydra_logging=none",
        )
        with initialize_config_dir(str(CONF), job_name="study", version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            config = loader.load_configuration("config", [*name_files(overrides), *own], RunMode.MULTIRUN)
        self._listener = _Listener()
        context = HydraContext(config_loader=loader, callbacks=Callbacks())
        context.callbacks.callbacks.append(self._listener)
        self.config = config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=study_job, config=config
        )
        self._shared = list(config.hydra.overrides.task)  # a launcher composes each job from these
        self._launched = 0

    @property
    def store(self) -> Path:
        """The directory of the store of the runs."""
        return store_of(self.config)

    def shown(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        """`run`, which shows how far it is, here and in the store."""
        own = [word for job in jobs for word in job]
        with course(self.config, f"study {' '.join(self._shared)}", own, len(jobs)) as ended:
            return self.run(jobs, ended)

    def run(self, jobs: Sequence[Sequence[str]], ended: Callable[[JobReturn], None] | None = None) -> list[Outcome]:
        """Run each of `jobs`, lists of further overrides, and wait for them; return outcomes in the same order.

        A job with a mistake of its user, or of a space of settings, is refused; any other error is raised. `ended`
        hears of each job.
        """
        self._listener.ended = ended
        returned = self._launcher.launch(
            [[*self._shared, *name_files(job)] for job in jobs], initial_job_idx=self._launched
        )
        self._launched += len(jobs)
        return [_outcome(tuple(job), one) for job, one in zip(jobs, returned, strict=True)]


class _Listener(Follower):
    """Hears of the jobs of a sweep."""

    ended: Callable[[JobReturn], None] | None = None

    def follow(self, returned: JobReturn) -> None:
        if self.ended is not None:
            self.ended(returned)

    def __reduce__(self) -> tuple[type[_Listener], tuple[()]]:
        """The copies in other processes hear of nothing."""
        return _Listener, ()


def _outcome(job: tuple[str, ...], returned: JobReturn) -> Outcome:
    value = returned._return_value  # the public property would print and raise
    if returned.status == JobStatus.COMPLETED:
        return Outcome(job, value, None)
    line = explain(value)
    if line is None or hook_noted(value):  # an exception of a policy in one run occurs in all
        raise value
    return Outcome(job, None, line)
