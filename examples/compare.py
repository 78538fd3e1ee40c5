"""A script: two policies on the same requests, and how their figures differ.

python examples/compare.py
"""

import polars as pl

import servelab

ares, fixed = (servelab.run(policy, "azure_conv", rate=40, limit=500) for policy in ("ares", "distserve"))
shown = ["goodput_rps", "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "migrations"]
print(ares.compare(fixed).filter(pl.col("metric").is_in(shown)))
