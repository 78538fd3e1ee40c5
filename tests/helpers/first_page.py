"""The four pictures of the site's first page: `python -m tests.helpers.first_page` makes them anew, without a network.

Three are drawn from runs of COMMANDS, the fourth is the part of docs/fidelity.png, a picture of `make fidelity`, that
has the calibrated predictions.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from tests.conftest import ROOT
from tests.helpers.gallery import packed, small
from tests.helpers.readme import environment

PLACE = ROOT / "docs" / "first"
MOST_BYTES = 60_000
_LOAD = "trace=synthetic trace.rate=60,80,100,120,140 trace.seed=0,1,2"
_EACH_GPU = "gpu=h100,a100,l40s cluster.instances=1 objective=capacity"
_DRAWING = "note=false formats=png"
_SERVELAB = "python -m servelab"
COMMANDS = (
    f"{_SERVELAB} -m policy=chunked,continuous,distserve,nexus {_LOAD} store=serve hydra.sweep.dir=rates",
    f"{_SERVELAB} plot slo from=serve x=trace.rate metric=goodput_rps replicate=trace.seed {_DRAWING} out=serve",
    f"{_SERVELAB} plot cdf rates trace.rate=120 replicate=trace.seed metric=ttft {_DRAWING} out=late",
    f"{_SERVELAB} -m +guide=chat policy=chunked,nexus {_EACH_GPU} store=buy hydra.sweep.dir=gpus",
    f"{_SERVELAB} plot bars from=buy columns=gpu metric=usd_per_million_good_tokens {_DRAWING} out=buy",
)
DRAWN = ("serve", "late", "buy")
# Pixels of docs/fidelity.png, as left, top, right, bottom: calibrated TTFT and TPOT, their axes, the legend of all.
_PANELS, _AXES, _LEGEND = (0, 550, 1072, 1003), (0, 2036, 1072, 2090), (330, 2100, 1300, 2130)


def draw() -> None:
    """Run the commands in a directory of their own, and put the pictures next to the page."""
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        for command in COMMANDS:
            subprocess.run(command, shell=True, cwd=home, env=environment(Path(home)), check=True)
        for name in DRAWN:
            (PLACE / f"{name}.png").write_bytes(small(Path(home) / f"{name}.png"))
    (PLACE / "right.png").write_bytes(_calibrated())


def _calibrated() -> bytes:
    with Image.open(ROOT / "docs" / "fidelity.png") as file:
        whole = file.convert("RGB")
    parts = [whole.crop(box) for box in (_PANELS, _AXES, _LEGEND)]
    joined = Image.new("RGB", (parts[0].width, sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        joined.paste(part, ((joined.width - part.width) // 2, top))
        top += part.height
    width = 700
    joined = joined.resize((width, round(joined.height * width / joined.width)), Image.Resampling.LANCZOS)
    return packed(joined.quantize(32, dither=Image.Dither.NONE))


if __name__ == "__main__":
    draw()
