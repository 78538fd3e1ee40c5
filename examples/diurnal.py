"""A day of half an hour: a fleet that stays as large as its peak needs, and one that follows the load at three costs of
a start.

python examples/diurnal.py
"""

import numpy as np
import polars as pl
from autoscaler import Autoscaler

import servelab

DAY_S, LEAST_RPS, MOST_RPS = 1800.0, 4.0, 130.0


def load():
    """A trace whose rate is a sine: least at both ends of the day, most in its middle."""
    rng = np.random.default_rng(5)
    at_s = np.sort(rng.uniform(0.0, DAY_S, int(MOST_RPS * DAY_S)))
    rate_rps = LEAST_RPS + (MOST_RPS - LEAST_RPS) * np.sin(np.pi * at_s / DAY_S) ** 2
    arrival_s = at_s[rng.uniform(0.0, MOST_RPS, len(at_s)) < rate_rps]
    lengths = {"input_tokens": rng.integers(500, 1500, len(arrival_s))}
    return pl.DataFrame({"arrival_s": arrival_s, **lengths, "output_tokens": rng.integers(100, 300, len(arrival_s))})


def run(policy, **settings):
    """The share of requests within their SLO, GPU-hours and starts."""
    summary = servelab.run(policy, load(), cluster__instances=6, slo__ttft_s=2.0, **settings).summary
    return summary["slo_attainment"], summary["gpu_hours"], summary.get("starts", 0)


if __name__ == "__main__":
    scaled = {"cluster__on_at_start": 1}
    for name, policy, settings in (
        ("all are on", "chunked", {}),
        ("starts take no time", Autoscaler(64, calm_s=60.0), scaled),
        ("a server starts", Autoscaler(64, calm_s=60.0), {**scaled, "engine__start": "process"}),
        ("a machine is added", Autoscaler(64, calm_s=60.0), {**scaled, "engine__start": "node"}),
    ):
        attained, gpu_hours, starts = run(policy, **settings)
        print(f"{name:22}{attained:8.1%}{gpu_hours:8.2f} GPU-hours{starts:4} starts")
