"""Rules of thumb: the loads for which the field recommends one family over another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from framework.system.gpu import Gpu
from framework.system.model import Model

_MFU = 0.5  # share of the peak with which arithmetic on paper computes prompts
_TIGHT = 60.0  # limit on TTFT over that on TPOT beyond which decodes are the harder part (TaiChi, arXiv 2508.01989)
_LONG_PROMPT = 8_192  # tokens on average (POD-Attention, ASPLOS 2025, measures traces of about 10,000)
_LONG_OUTPUT = 1_000  # tokens on average (ARES, arXiv 2510.13668, measures outputs of thousands)
_FEW_GPUS = 2  # Nexus (arXiv 2507.06608) measures one and two


@dataclass(frozen=True)
class Load:
    """What rules ask of a load and of the machine below it.

    `output_cv`: standard deviation of output lengths over their mean. Limits are None where there is none.
    `link_share`: see the function of this name. `bandwidth_gain`: memory bandwidth for a dollar on the second kind of
    GPU, over that on the first; NaN without one.
    """

    gpus: int
    prompt_tokens: float
    output_tokens: float
    output_cv: float
    ttft_s: float | None
    tpot_s: float | None
    link_share: float
    bandwidth_gain: float = math.nan

    @property
    def is_tight_in_decode(self) -> bool:
        """Whether the limit on TPOT is harder to keep than that on TTFT."""
        return self.tpot_s is not None and (self.ttft_s is None or self.ttft_s > _TIGHT * self.tpot_s)


@dataclass(frozen=True)
class Rule:
    """The family is recommended over the family `over` for `text`; `applies`: whether a load is such a one."""

    text: str
    over: str
    applies: Callable[[Load], bool]


def link_share(model: Model, gpu: Gpu, link_bytes_s: float | None, tp: int) -> float:
    """Bytes/s of an instance's link over those of the KV that it makes as it prefills.

    `link_bytes_s` is None for the ports of its own `tp` GPUs. The KV is that of arithmetic on paper: tokens of 2 N
    FLOPs at half of the peak.
    """
    tokens_s = tp * _MFU * gpu.peak(model.dtype) / model.flops_per_token
    return (tp * gpu.nic_bytes_s if link_bytes_s is None else link_bytes_s) / (tokens_s * model.kv_bytes_per_token)


WHOLE = Rule("loads without a limit on TPOT", "chunked", lambda load: load.tpot_s is None)
CHUNKED = Rule("loads with a limit on TPOT", "whole", lambda load: load.tpot_s is not None)
DISAGGREGATED = Rule(
    f"TPOT limits under 1/{_TIGHT:.0f} of that on TTFT and links as fast as prefill makes KV",
    "chunked",
    lambda load: load.is_tight_in_decode and load.link_share >= 1,
)
SHARED = Rule("one or two GPUs", "disaggregated", lambda load: load.gpus <= _FEW_GPUS)
POD = Rule(f"prompts of {_LONG_PROMPT:,} tokens or more", "chunked", lambda load: load.prompt_tokens >= _LONG_PROMPT)
ARES = Rule(
    f"outputs of {_LONG_OUTPUT:,} tokens or more that vary as much as their mean",
    "disaggregated",
    lambda load: load.output_tokens >= _LONG_OUTPUT and load.output_cv >= 1,
)
HACK = Rule("links slower than prefill makes KV", "disaggregated", lambda load: load.link_share < 1)
UNLIKE = Rule("a second GPU with more bandwidth for its price", "disaggregated", lambda load: load.bandwidth_gain > 1)
