"""From a configuration to the objects of one experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from framework.cluster import ClusterSpec
from framework.engine.config import EngineConfig
from framework.errors import InputError
from framework.hardware import Model, kv_capacity_tokens
from framework.load import Load
from framework.metrics import Slo
from framework.policy import Policy, lay_out
from framework.predictor import Predictor
from framework.simulate import Result, simulate
from framework.terminal import progress_bar
from framework.timing.step import Timing
from framework.workload import Workload

_KINDS: tuple[tuple[str, type | None], ...] = (
    ("model", Model),
    ("timing", None),
    ("engine", EngineConfig),
    ("load", Load),
    ("slo", Slo),
    ("cluster", ClusterSpec),
    ("policy", Policy),
    ("predictor", None),
)


@dataclass(frozen=True)
class Experiment:
    """What `simulate` needs, and the SLO by which its result is judged."""

    workload: Workload
    cluster: ClusterSpec
    model: Model
    timing: Timing
    engine: EngineConfig
    policy: Policy
    predictor: Predictor | None
    load: Load
    slo: Slo
    seed: int

    def run(self) -> Result:
        """Simulate, with a progress bar where somebody watches, and check the engine's invariants."""
        with progress_bar(f"{type(self.policy).__name__} on {self.workload.name}") as progress:
            result = simulate(
                self.workload,
                self.cluster,
                self.model,
                self.timing,
                engine=self.engine,
                policy=self.policy,
                predictor=self.predictor,
                load=self.load,
                seed=self.seed,
                progress=progress,
            )
        result.check()
        return result


def compose(config: DictConfig) -> Experiment:
    """Build each part that `config` names by `_target_`.

    Raises InputError for a seed or an output that cannot be, and Hydra's InstantiationException around whatever a part
    refuses.
    """
    if isinstance(config.seed, bool) or not isinstance(config.seed, int) or config.seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, got {config.seed!r}")
    for name, value in config.output.items():
        if not isinstance(value, bool):
            raise InputError(f"output.{name} must be true or false, got {value!r}")
        if value and config.engine.get("log") == "reduced":
            raise InputError(
                f"output.{name} needs the step log, which engine.log=reduced does not keep; set engine.log=full"
            )
    parts = {name: _build(config, name, kind) for name, kind in _KINDS}
    model, engine = parts["model"], parts["engine"]
    for pool in lay_out(parts["policy"], parts["cluster"]).pools:  # refuses a cluster that it cannot use
        kv_capacity_tokens(model, pool.gpu, pool.parallelism, engine.kv_fraction)  # refuses a model that does not fit
        parts["timing"].row(model, pool.gpu, pool.parallelism)  # refuses what it has no times of
    # The trace comes last: it takes the longest, and a mistake elsewhere should show at once.
    return Experiment(workload=_build(config, "trace", Workload), seed=config.seed, **parts)


def _build(config: DictConfig, name: str, kind: type | None) -> Any:
    part = instantiate(config[name], _convert_="all")
    if kind is not None and not isinstance(part, kind):
        raise InputError(f"{name}: _target_ must make a {kind.__name__}, it made a {type(part).__name__}")
    return part
