"""What each part of a mechanism is worth: its variants on the same samples of a trace, in one table.

    python -m experiments.ablation NAME [--replicates N] [--out DIR] [KEY=VALUE ...]

conf/ablation/NAME.yaml names the variants. Every (variant, replicate) is run once; differences are paired by replicate,
intervals are Student's t over replicates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose as compose_config
from hydra.utils import instantiate
from omegaconf import OmegaConf

from framework.cli.arguments import name_files
from framework.cli.launch import guard
from framework.cli.terminal import results_console
from framework.errors import InputError
from framework.metrics.statistics import Estimate, Floats, estimate
from framework.metrics.summary import evaluate
from framework.objective.goodput import Goodput
from framework.run.compose import compose
from framework.run.launchers.composition import composing
from framework.workload import Workload

_CONF = Path(__file__).resolve().parents[2] / "conf"
_TABLE_COLUMNS = 170  # of a file or a pipe; narrower terminals fold the table


@dataclass(frozen=True)
class Published:
    """What a paper claims of a variant: shown beside the measured change of `metric` against each baseline."""

    metric: str
    variant: str
    claim: str


@dataclass(frozen=True)
class Ablation:
    """The contents of conf/ablation/NAME.yaml.

    `base` and each of `variants` are overrides of conf/config.yaml; `comparisons` names the variants to be compared
    with each baseline, itself a variant. `replicate` is the key that tells replicates 0, 1, ... apart. `metrics`: keys
    of summary.json and their headings. Raises InputError for names that do not fit together.
    """

    title: str
    base: Sequence[str]
    variants: Mapping[str, Sequence[str]]
    comparisons: Mapping[str, Sequence[str]]
    metrics: Mapping[str, str]
    replicates: int = 10
    replicate: str = "seed"
    published: Sequence[Published] = ()
    notes: Sequence[str] = ()
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        compared = [variant for baseline, variants in self.comparisons.items() for variant in (baseline, *variants)]
        for variant in (*compared, *(claim.variant for claim in self.published)):
            if variant not in self.variants:
                raise InputError(f"ablation {self.name}: no variant {variant!r}; there are {', '.join(self.variants)}")
        for claim in self.published:
            if claim.metric not in self.metrics:
                raise InputError(f"ablation {self.name}: published metric {claim.metric!r} is not among its metrics")
        if isinstance(self.replicates, bool) or not isinstance(self.replicates, int) or self.replicates < 1:
            raise InputError(f"ablation {self.name}: replicates must be at least 1, got {self.replicates!r}")


@dataclass(frozen=True)
class Outcome:
    """Every figure of an ablation: `values[variant][metric]` has one value a replicate, NaN where it is undefined."""

    ablation: Ablation
    replicates: int
    overrides: Sequence[str]
    trace: str
    trace_source: str
    values: Mapping[str, Mapping[str, Floats]]

    def level(self, variant: str, metric: str) -> Estimate:
        """The mean of a metric."""
        return estimate(self.values[variant][metric])

    def difference(self, variant: str, baseline: str, metric: str) -> Estimate:
        """The mean of the paired differences."""
        return estimate(self.values[variant][metric] - self.values[baseline][metric])

    def change(self, variant: str, baseline: str, metric: str) -> Estimate:
        """The mean of the paired relative changes, in %; NaN where a baseline's value is 0."""
        reference = self.values[baseline][metric]
        relative = np.divide(
            self.values[variant][metric], reference, out=np.full_like(reference, np.nan), where=reference != 0
        )
        return estimate(100 * (relative - 1))


# --- reading and running ----------------------------------------------------------------------------------------------


def read_ablation(name: str, folder: Path = _CONF / "ablation") -> Ablation:
    """The ablation of that name. Raises InputError, listing those that exist, if there is none, or for a bad file."""
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        raise InputError(f"{name!r}: there is no ablation of that name; choose one of {', '.join(names)}")
    content = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"))
    known = {item.name for item in fields(Ablation)} - {"name"}
    if not isinstance(content, dict) or not set(content) <= known:
        raise InputError(f"{name}.yaml: its keys must be among {', '.join(sorted(known))}")
    try:
        published = tuple(Published(**claim) for claim in content.pop("published", ()))
        return Ablation(**{str(key): value for key, value in content.items()}, published=published, name=name)
    except TypeError as error:  # a key too many or too few
        raise InputError(f"{name}.yaml: {error}") from error


def run(ablation: Ablation, replicates: int, overrides: Sequence[str] = ()) -> Outcome:
    """Run every variant on every replicate, with progress on stderr.

    Raises InputError for a metric that summaries lack and for replicates that are all the same, and what Hydra and the
    parts raise for their settings.
    """
    with composing(_CONF):
        return _run(ablation, replicates, overrides)


def _run(ablation: Ablation, replicates: int, overrides: Sequence[str]) -> Outcome:
    rows: dict[str, list[dict[str, Any]]] = {variant: [] for variant in ablation.variants}
    first: Workload | None = None
    started_s = time.monotonic()
    for replicate in range(replicates):
        sample: Workload | None = None
        for variant, own in ablation.variants.items():
            own_seed = f"{ablation.replicate}={replicate}"
            workload, summary = _run_once([*ablation.base, *own, *overrides, own_seed], sample)
            _check_metrics(ablation, summary)
            sample = workload if sample is None else sample
            if first is not None and _same(first, sample):
                raise InputError(
                    f"trace {sample.name} does not vary with {ablation.replicate}, so that there is no interval over "
                    "replicates; choose a twin or a synthetic trace, or --replicates 1"
                )
            rows[variant].append(summary)
        first = sample if first is None else first
        print(f"replicate {replicate + 1} of {replicates}, {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    values = {
        variant: {key: np.asarray([row[key] for row in runs], np.float64) for key in ablation.metrics}
        for variant, runs in rows.items()
    }
    any_run = next(iter(rows.values()))[0]
    return Outcome(ablation, replicates, list(overrides), any_run["trace"], any_run["trace_source"], values)


def _run_once(overrides: Sequence[str], sample: Workload | None) -> tuple[Workload, dict[str, Any]]:
    """One run or search, and its summary. InputError if its workload is not `sample`, with which it is to be paired."""
    config = compose_config("config", overrides=name_files(overrides))
    experiment = compose(config)
    if sample is not None and not _same(sample, experiment.workload):
        raise InputError("variants run on different requests, which cannot be paired: leave the trace to base")
    objective = instantiate(config.objective, _convert_="all")
    if isinstance(objective, Goodput):  # of a single run; no table asks for its bound
        return experiment.workload, evaluate(experiment.run(), experiment.slo).summary
    return experiment.workload, objective.measure(experiment).evaluation.summary


def _same(one: Workload, other: Workload) -> bool:
    columns = ("arrival_s", "input_tokens", "output_tokens")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


def _check_metrics(ablation: Ablation, summary: Mapping[str, Any]) -> None:
    numeric = [key for key, value in summary.items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
    unknown = [key for key in ablation.metrics if key not in summary]
    if unknown:
        raise InputError(f"ablation {ablation.name}: no metric {', '.join(unknown)}; there are {', '.join(numeric)}")


# --- the command ------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ablation named on the command line and print its table; the exit code."""
    from experiments.ablation.report import as_table, remarks, require_writable, write

    options = _parser().parse_intermixed_args(arguments)

    def run_and_show() -> None:
        ablation = read_ablation(options.name)
        replicates = ablation.replicates if options.replicates is None else options.replicates
        if replicates < 1:
            raise InputError(f"--replicates is {replicates}, must be at least 1")
        if options.out is not None:
            require_writable(options.out)
        outcome = run(ablation, replicates, options.overrides)
        console = results_console()
        if not console.is_terminal:
            console.width = max(console.width, _TABLE_COLUMNS)
        console.print(as_table(outcome))
        for remark in remarks(outcome):
            console.print(f"- {remark}", highlight=False, markup=False)
        if options.out is not None:
            write(options.out, outcome)

    return guard(run_and_show)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.ablation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="a file of conf/ablation, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of every run, as for run.py")
    parser.add_argument("--replicates", type=int, help="instead of the file's number")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write NAME.md, NAME.csv and NAME.json there")
    return parser
