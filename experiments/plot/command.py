"""Pictures for papers, from a store or from the directories of runs: PDF, PNG and SVG, in one or two columns.

    python -m experiments.plot cdf outputs/one outputs/other metric=ttft,tpot
    python -m experiments.plot series outputs/one metric=queue,utilization width=double
    python -m experiments.plot bars from=results metric=goodput_rps,p99_ttft_ms columns=trace
    python -m experiments.plot pareto from=multirun/swept x=usd_per_hour
    python -m experiments.plot slo from=results x=trace.rate

cdf: latencies of requests (metric=ttft,tpot,tbt,tbt_p99,e2e,queue), with the limits of the SLO
series: runs with output.series_s over time (metric=queue,utilization,...)
bars: figures of summary.json by policy, in groups by columns=KEY
pareto: metric= (goodput) against x=usd_per_hour, gpus, gpu_hours or another figure; a line joins the best ones
slo: metric= (attainment) against x=scale, all limits times a factor, or against a setting, as x=trace.rate

Directories of runs, of sweeps and stores may be operands, or given by from=. Any other KEY=VALUE,VALUE keeps only runs
with such a value: policy=chunked,ares trace.rate=8
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.plot.arguments import KEYS, Request, read_request
from experiments.plot.source import Source, read_source, unlike_policies
from experiments.table.select import kept
from framework.cli.arguments import FILTERS
from framework.cli.command import Arguments, command
from framework.cli.terminal import tell
from framework.run.store import Record


@command(__doc__, operands="KIND [DIR ...]", keys=KEYS, settings=FILTERS)
def main(arguments: Arguments) -> None:
    """Draw one picture, write it in each format, and print what its caption must state."""
    request = read_request(arguments)
    source = read_source(request.places)
    records = kept(source.records, request.filters)
    policies = list(read_source([Path(request.own["colours"]).expanduser()]).policies if request.own["colours"] else [])
    policies += [name for name in source.policies if name not in policies]
    note, paths = draw(request, source, records, policies)
    print(note)
    if (line := unlike_policies(records)) is not None:
        print(line)
    for path in paths:
        tell(f"picture in {path}")


def draw(
    request: Request, source: Source, records: Sequence[Record], policies: Sequence[str]
) -> tuple[str, list[Path]]:
    """Draw these runs and write the picture; return its note, and the files. Matplotlib is loaded only here."""
    from experiments.plot.bars import bars
    from experiments.plot.cdf import cdf
    from experiments.plot.frame import Looks
    from experiments.plot.over_time import series
    from experiments.plot.pareto import pareto
    from experiments.plot.slo import slo
    from experiments.plot.style import save, styled

    kinds = {"cdf": cdf, "series": series, "bars": bars, "pareto": pareto, "slo": slo}
    with styled():
        picture = kinds[request.kind](source, records, request, Looks(policies))
        return picture.note, save(picture.figure, request.out.parent, request.out.name, request.formats, request.dpi)
