"""Chat and batch requests share GPUs that cannot serve both: with and without bands at a gateway.

python examples/batch_and_chat.py
"""

import numpy as np
import polars as pl

import servelab

SECONDS = 120.0
LIMITS = {"slo__classes": {"batch": {"ttft_s": 120.0, "tpot_s": None}}}
GATEWAY = {"gateway": "flow_control", "gateway__bands_by": "slo_class", "gateway__band_order": ["chat", "batch"]}
BY_COUNT = {**GATEWAY, "gateway__saturation": "in_flight", "gateway__most_in_flight": 64}
STALE = {"engine__views__every_s": 5.0}


def load():
    """A trace: 12 chat requests/s, and 1,200 batch requests of longer prompts and outputs in the first half minute."""
    rng = np.random.default_rng(5)
    chat, batch = int(12 * SECONDS), 1200
    rows = {
        "arrival_s": np.concatenate([rng.uniform(0, SECONDS, chat), rng.uniform(0, 30.0, batch)]),
        "input_tokens": np.concatenate([rng.integers(200, 1200, chat), rng.integers(1000, 4000, batch)]),
        "output_tokens": np.concatenate([rng.integers(50, 250, chat), rng.integers(200, 600, batch)]),
        "slo_class": ["chat"] * chat + ["batch"] * batch,
    }
    return pl.DataFrame(rows).sort("arrival_s")


def run(**settings):
    """By class: attainment, P99 TTFT in seconds, and P99 wait at the gateway in seconds."""
    summary = servelab.run("vllm_v1", load(), cluster__instances=2, **LIMITS, **settings).summary
    waits = {row["name"]: row["p99_gateway_ms"] / 1e3 for row in summary.get("gateway", ()) if row["by"] == "class"}
    classes = {name: summary["classes"][name] for name in ("chat", "batch")}
    return {name: (one["slo_attainment"], one["p99_ttft_ms"] / 1e3, waits.get(name)) for name, one in classes.items()}


if __name__ == "__main__":
    for name, settings in (
        ("no gateway", {}),
        ("queues and KV", GATEWAY),
        ("the same, seen every 5 s", {**GATEWAY, **STALE}),
        ("64 in flight, seen every 5 s", {**BY_COUNT, **STALE}),
        ("64 in flight", BY_COUNT),
    ):
        for kind, (attainment, ttft_s, wait_s) in run(**settings).items():
            waited = "" if wait_s is None else f"{wait_s:9.2f} s at the gateway"
            print(f"{name:30}{kind:6}{attainment:8.1%}{ttft_s:9.2f} s{waited}")
