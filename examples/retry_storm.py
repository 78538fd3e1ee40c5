"""A burst of 30 s that clients answer with retries: the fleet does not recover from it, unless it sheds load in time.

python examples/retry_storm.py
"""

import numpy as np
import polars as pl
from least_work import LeastWork

import servelab

RATES_RPS = ((12.0, 60.0), (36.0, 30.0), (12.0, 210.0))  # each with the seconds for which it lasts
PATIENCE = {"load__patience__wait_s": 4.0}
RETRIES = {**PATIENCE, "load__patience__retries": 5}
GATEWAY = {"gateway": "flow_control", "gateway__ttl_s": 2.0}


def load():
    """A trace: its rate doubles capacity for a while."""
    rng = np.random.default_rng(3)
    begins_s = np.cumsum([0.0, *(span_s for _, span_s in RATES_RPS)])
    arrivals = [
        np.sort(rng.uniform(begin_s, begin_s + span_s, int(rate_rps * span_s)))
        for begin_s, (rate_rps, span_s) in zip(begins_s, RATES_RPS, strict=False)
    ]
    count = sum(map(len, arrivals))
    lengths = {"input_tokens": rng.integers(1000, 3000, count), "output_tokens": rng.integers(100, 300, count)}
    return pl.DataFrame({"arrival_s": np.concatenate(arrivals), **lengths})


def run(policy, **settings):
    """Attainment of all requests and of those of the last minute, and how often one was sent again."""
    found = servelab.run(policy, load(), cluster__instances=1, slo__ttft_s=4.0, **settings)
    late = found.requests.filter(pl.col("arrival_s") >= 240.0)
    return found.summary["slo_attainment"], late["good"].mean(), found.summary.get("sent_again", 0)


if __name__ == "__main__":
    for name, policy, settings in (
        ("clients wait", "chunked", {}),
        ("clients give up after 4 s", "chunked", PATIENCE),
        ("and retry up to 5 times", "chunked", RETRIES),
        ("the same, load is shed", LeastWork(patience_s=2.0), RETRIES),
        ("the same, by a gateway", "chunked", {**RETRIES, **GATEWAY}),
    ):
        all_of_them, late, again = run(policy, **settings)
        print(f"{name:26}{all_of_them:8.1%}{late:8.1%} in the last minute{again:8,} retries")
