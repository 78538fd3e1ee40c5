"""How many measured deployments lie in the ranges of `output.sensitivity`, with terms that have not seen them.

    python -m experiments.validation.given.coverage kind=dense every=2
    python -m experiments.validation.given.coverage kind=moe every=6

A deployment is replayed with the terms that were fitted on another GPU, and with none, each with steps as they are,
shorter and longer by the width of its class. Rows whose requests wait long (TTFT over a quarter of the decoding time)
are also counted separately. It needs `pip install '.[fidelity]'`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from experiments.validation.fidelity.csv_file import read_rows
from experiments.validation.fidelity.replay import Replay, Replayed, replay
from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.server import assumed, unsupported
from framework.checks import require_choice
from framework.cli.arguments import configured
from framework.cli.command import Arguments, command
from framework.cli.terminal import tell
from framework.errors import InputError
from framework.timing.calibration_terms import SERVER_TERMS, Calibration, calibration_path, read_calibrations
from framework.timing.shipped.profile_files import shipped_directory
from framework.timing.uncertainty.widths import OTHERS, WIDTHS, Width

_OTHER = {"h100": "h200", "h200": "h100", "b200": "h200", "b300": "b200", "gb200": "b200", "gb300": "b200"}
_QUEUEING = 0.25  # of the decoding time
_KEYS = {
    "kind": "dense or moe; dense by default",
    "backend": "vllm, sglang or trtllm; vllm by default",
    "every": "of how many deployments one is replayed; each by default",
}


@dataclass(frozen=True)
class Held:
    """Whether a deployment's TTFT and TPOT lie in their ranges, and whether its requests wait long."""

    ttft: bool
    tpot: bool
    queueing: bool


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Print the counts with the fit of another GPU and without a fit."""
    kind, backend = arguments.own.get("kind", "dense"), arguments.own.get("backend", "vllm")
    require_choice("kind", kind, ("dense", "moe"))
    rows = [row for row in read_rows().rows if (row.kind, row.backend, row.mode) == (kind, backend, "agg")]
    rows = sorted((row for row in rows if not row.doubts and not unsupported(row)), key=_place)
    rows = rows[:: arguments.whole("every", 1)]
    if not rows:
        raise InputError(f"no {kind} deployments of {backend}")
    for name, terms in (("another GPU's fit", _fitted(kind, backend)), ("no fit", dict.fromkeys(_OTHER, unfitted()))):
        width = WIDTHS[kind, name != "no fit"] if backend == "vllm" else OTHERS
        tell(f"{kind}, {backend}, {name}: {counted(list(held(rows, terms, width)))}")


def held(rows: list[Row], terms: Mapping[str, Calibration], width: Width) -> Iterator[Held]:
    """The result for each row that has terms, by its GPU, and can be replayed."""
    for row in rows:
        known = terms.get(row.gpu)
        factors = (1 - width.steps, 1.0, 1 + width.steps)
        outcomes = [] if known is None else [replay(Replay(row, assumed(row), longer(known, one))) for one in factors]
        short, own, long = [one for one in outcomes if isinstance(one, Replayed)] or (None, None, None)
        if short is None or own is None or long is None:
            continue
        ttfts = (short.ttft_s, own.ttft_s / width.ttft, own.ttft_s * width.ttft, long.ttft_s)
        yield Held(
            ttft=min(ttfts) <= row.ttft_s <= max(ttfts),
            tpot=min(short.tpot_s, long.tpot_s) <= row.tpot_s <= max(short.tpot_s, long.tpot_s),
            queueing=row.ttft_s > _QUEUEING * (row.osl - 1) * row.tpot_s,
        )


def longer(terms: Calibration, factor: float) -> Calibration:
    """The terms of a server on which everything takes `factor` times as long."""
    own = {name: factor * getattr(terms, name) for name in SERVER_TERMS}
    return replace(terms, kernel=factor * terms.kernel, communication=factor * terms.communication, **own)


def counted(found: list[Held]) -> str:
    """The counts as text."""
    waiting = [one for one in found if one.queueing]
    of_waiting = f"TTFT of {sum(one.ttft for one in waiting)} of the {len(waiting)} whose requests wait long"
    tpot, ttft = sum(one.tpot for one in found), sum(one.ttft for one in found)
    return f"TPOT of {tpot}, TTFT of {ttft} of {len(found)}; {of_waiting}"


def unfitted() -> Calibration:
    """The server's own terms."""
    server = configured(["policy=vllm_v1"], ("server",))["server"]
    return Calibration(**{name: getattr(server, name) for name in SERVER_TERMS})


def _fitted(kind: str, backend: str) -> dict[str, Calibration]:
    """For each GPU the terms that were fitted to deployments of that kind on another one."""
    found = {}
    for gpu, other in _OTHER.items():
        path = calibration_path(shipped_directory(), other, backend)
        fits = read_calibrations(path) if path.is_file() else ()
        for fit in fits:
            if fit.selector.kind == kind:
                found[gpu] = fit.calibration
    return found


def _place(row: Row) -> tuple[str, str, str]:
    return row.gpu, row.deployment, row.key


if __name__ == "__main__":
    main.start()
