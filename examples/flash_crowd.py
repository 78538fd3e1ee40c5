"""A flash crowd, and an autoscaler of metrics that are scraped: seldom, late, or by the router, too.

python examples/flash_crowd.py
"""

import numpy as np
import polars as pl
from autoscaler import Autoscaler

import servelab

LASTS_S, BASE_RPS = 1200.0, 20.0
CROWD_RPS, FROM_S, UNTIL_S = 70.0, 300.0, 600.0  # on top
SCRAPED = {"engine__views__every_s": 60.0, "engine__views__delay_s": 15.0}


def load():
    """A trace of an even rate with a crowd in its middle."""
    rng = np.random.default_rng(5)
    crowd_s = rng.uniform(FROM_S, UNTIL_S, int(CROWD_RPS * (UNTIL_S - FROM_S)))
    arrival_s = np.sort(np.concatenate([rng.uniform(0.0, LASTS_S, int(BASE_RPS * LASTS_S)), crowd_s]))
    lengths = {"input_tokens": rng.integers(500, 1500, len(arrival_s))}
    return pl.DataFrame({"arrival_s": arrival_s, **lengths, "output_tokens": rng.integers(100, 300, len(arrival_s))})


def run(**settings):
    """The share of requests within their SLO, P99 TTFT in seconds, GPU-hours and starts."""
    fleet = {"cluster__instances": 6, "cluster__on_at_start": 1, "engine__start": "process"}
    summary = servelab.run(Autoscaler(64, calm_s=60.0), load(), slo__ttft_s=2.0, **fleet, **settings).summary
    return summary["slo_attainment"], summary["p99_ttft_ms"] / 1e3, summary["gpu_hours"], summary["starts"]


if __name__ == "__main__":
    for name, settings in (
        ("current", {}),
        ("every 30 s, 15 s late", {**SCRAPED, "engine__views__every_s": 30.0, "engine__views__hooks": "on_tick"}),
        ("every 60 s, 15 s late", {**SCRAPED, "engine__views__hooks": "on_tick"}),
        ("the router, too", SCRAPED),
    ):
        attained, ttft_s, gpu_hours, starts = run(**settings)
        print(f"{name:23}{attained:7.1%}{ttft_s:8.1f} s{gpu_hours:7.2f} GPU-hours{starts:4} starts")
