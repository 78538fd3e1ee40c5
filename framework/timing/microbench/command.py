"""Measures the kernels of a model on the GPU here: `python -m framework.timing.microbench model=llama3_8b ...`

It needs PyTorch with CUDA, which this project does not install. On a machine that has both, run

    python -m framework.timing.microbench model=llama3_8b tp=1,2,4 out=h200.csv

and a table of kernel times grows in h200.csv, with h200.json next to it (device, driver, versions, clocks, what was
left out and why). An interrupted command continues where it stopped. Then make a profile of it, which timing=measured
finds as timing.backend=torch:

    python -m framework.timing.kernels.build model=llama3_8b gpu=h200 backend=torch tp=2 kernels=h200.csv

One GPU is enough for all tp: it measures what one GPU of a group computes. All-reduces need as many GPUs as they join.

With the word `list` it prints what would be measured and how long that takes, then stops; that needs no GPU.

A case is one kernel call, captured in a CUDA graph as servers replay it. Each time is the median of repeats, each
repeat the mean over the calls of one replay, until the interquartile range falls below 2 % of the median.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework.cli.arguments import DIRECTORIES
from framework.cli.command import Arguments, command
from framework.cli.files import write_whole
from framework.cli.reading import parsed_json, read_text
from framework.cli.terminal import progress_line
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.timing.microbench.cases import Case, unmeasured_parts
from framework.timing.microbench.cuda import CudaDevice
from framework.timing.microbench.device import Device, Measured, OutOfMemoryError, Repeats, UnsupportedError
from framework.timing.microbench.journal import Origin, Table
from framework.timing.microbench.options import KEYS, Options, dry_run_gpu, gpu_named

_PREPARE_S = 0.15  # allocating, capturing and warming up one case; for estimates
_REPLAY_S = 0.002  # least seconds of one sample; for estimates
_REASONS = 8  # most reasons that a summary lists
_PAUSE_S = 10.0  # between two records of the clocks


@dataclass
class Outcome:
    """How many cases were measured and how many were not; `unsupported` counts them by reason.

    `clocks` has the clocks of the GPU in MHz, by name, and the seconds since the start at which they were read.
    """

    measured: int = 0
    known: int = 0
    out_of_memory: int = 0
    unmeasured: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    clocks: list[dict[str, float]] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{self.measured} measured", f"{self.known} already in the table"]
        parts += [f"{self.out_of_memory} out of memory"] if self.out_of_memory else []
        parts += [f"{count} left out ({reason})" for reason, count in self.unsupported.most_common(_REASONS)]
        others = sum(self.unsupported.values()) - sum(count for _, count in self.unsupported.most_common(_REASONS))
        parts += [f"{others} left out for other reasons"] if others else []
        parts += [f"{self.unmeasured} not measured for lack of time"] if self.unmeasured else []
        return ", ".join(parts)


def measure(
    cases: Sequence[Case],
    device: Device,
    table: Table,
    gpu: Gpu,
    budget_s: float = float("inf"),
    repeats: Repeats | None = None,
    report: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Time the cases that `table` lacks, in order, and add them to it.

    It stops before a case that would end later than `budget_s` seconds after the start, by an estimate for `gpu`.
    `report(done, total)` is called before each case, and `clock()` gives the seconds.
    """
    outcome, started, clocks_due = Outcome(), clock(), clock()
    repeats = Repeats() if repeats is None else repeats
    for done, case in enumerate(cases):
        if report is not None:
            report(done, len(cases))
        if case in table:
            outcome.known += 1
            continue
        now = clock()
        if now - started + estimate_s(case, gpu) > budget_s:
            outcome.unmeasured = sum(case not in table for case in cases[done:])
            outcome.known += len(cases) - done - outcome.unmeasured
            break
        if now >= clocks_due:
            outcome.clocks.append({"seconds": round(now - started, 1), **device.clocks_mhz()})
            clocks_due = now + _PAUSE_S
        try:
            table.add(case, _time(device, case, repeats, clock))
            outcome.measured += 1
        except OutOfMemoryError:
            outcome.out_of_memory += 1
        except UnsupportedError as reason:
            outcome.unsupported[f"{case.operation}: {reason}"] += 1
    return outcome


def _time(device: Device, case: Case, repeats: Repeats, clock: Callable[[], float]) -> Measured:
    timed = device.prepare(case)
    try:
        return repeats.time(timed, clock)
    finally:
        timed.release()


def estimate_s(case: Case, gpu: Gpu) -> float:
    """A rough estimate of the seconds that timing a case takes."""
    repeats = Repeats()
    return _PREPARE_S + (repeats.warm_up + repeats.least) * max(_REPLAY_S, case.estimate_s(gpu))


def describe(cases: Sequence[Case], gpu: Gpu) -> str:
    """How many cases of each operation there are in each round, and how many minutes they take, as text."""
    lines, passed_s = [], 0.0
    for number in sorted({case.round for case in cases}):
        chosen = [case for case in cases if case.round == number]
        passed_s += sum(estimate_s(case, gpu) for case in chosen)
        counts = ", ".join(f"{name} {count}" for name, count in Counter(c.operation for c in chosen).items())
        lines.append(f"round {number}: {counts}; {passed_s / 60:.1f} minutes until its end")
    return "\n".join([*lines, f"{len(cases)} cases, about {passed_s / 60:.0f} minutes on one {gpu.name} (estimated)"])


def run(options: Options, open_device: Callable[[str], Device]) -> Outcome:
    """Measure what `options` ask for, on the device that `open_device(attention library)` returns.

    Raises InputError without a GPU, and for files that cannot be continued.
    """
    cases, earlier = options.cases(), _earlier_runs(_origin_path(options))
    device = open_device(options.attention)
    try:
        origin = device.origin
        gpu = gpu_named(options.gpu, str(origin["device"]), float(origin["memory_bytes"]), options.config_dirs)
        table = Table(options.out, Origin(gpu.name, str(origin["version"]), options.licence))
        try:
            with progress_line(f"{gpu.name}, {options.out}", "cases") as report:
                outcome = measure(cases, device, table, gpu, options.budget_s, report=report)
        finally:  # This is also done if the user interrupts.
            written = table.finish()
        runs = [*earlier, _described(options, origin, outcome)]
        write_whole(_origin_path(options), (json.dumps(runs, indent=2) + "\n").encode())
    finally:
        device.close()
    print(f"{', '.join(map(str, written)) or 'nothing written'}: {outcome}")
    print(*unmeasured_parts(options.models), sep="\n")
    return outcome


def _origin_path(options: Options) -> Path:
    """The file next to the table that describes the runs which made it, the newest last."""
    return options.out.with_suffix(".json")


def _earlier_runs(path: Path) -> list[Any]:
    """The runs described so far. Raises InputError for a file with other content."""
    if not path.exists():
        return []
    try:
        runs = parsed_json(read_text(path))
    except (InputError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); move it away, or choose another out=") from error
    if not isinstance(runs, list):
        raise InputError(f"{path}: does not describe measurements; move it away, or choose another out=")
    return runs


def _described(options: Options, origin: Mapping[str, str | int | float], outcome: Outcome) -> dict[str, Any]:
    return {
        **origin,
        "arguments": list(options.arguments),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "outcome": str(outcome),
        "clocks_mhz": outcome.clocks,
    }


@command(__doc__, operands="[list]", keys=KEYS, settings=DIRECTORIES)
def main(arguments: Arguments) -> None:
    """Run the command line. Raises InputError for a user's mistake."""
    options = Options.parse(arguments)
    if options.dry_run:
        print(describe(options.cases(), dry_run_gpu(options.gpu, options.config_dirs)))
        print(*unmeasured_parts(options.models), sep="\n")
    else:
        run(options, CudaDevice)
