"""The options of a run, as compiled code reads them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from framework.codes import FIRST_TOKENS, RECOMPUTE, SWAP
from framework.engine.memory.options import OPTIONS
from framework.engine.setup.config import Setting
from framework.engine.setup.gateway import gateway_options
from framework.timing.table import StepRow

_UNBOUNDED = 1 << 40  # tokens


def run_options(setting: Setting, entrance: StepRow) -> NDArray[np.void]:
    """(1,) OPTIONS without sizes and offsets of lists; `entrance`: step times of the pool that requests enter."""
    options = np.zeros(1, OPTIONS)
    options["seed"] = setting.seed % 2**32
    options["rows_at_once"] = max(len(group) for group in setting.cluster.groups) if setting.engine.faults else 1
    _set_front_end(options, setting, entrance)
    _set_model(options, setting)
    _set_engine(options, setting)
    _set_parts(options, setting)
    link = setting.cluster.link
    options["latency_s"] = link.latency_s
    options["exchange_s"] = 2 * setting.model.layers * link.latency_s
    options["shares_links"] = link.sharing == "fair"
    options["limits_fabric"] = link.fabric_bytes_s is not None
    return options


def _set_front_end(options: NDArray[np.void], setting: Setting, entrance: StepRow) -> None:
    load, delay_s = setting.load, entrance.request_s
    options["request_s"] = delay_s
    options["horizon_s"] = np.inf if load.duration_s is None else load.duration_s + delay_s
    options["backoff_s"] = load.backoff_s
    patience = load.patience
    options["patience_s"] = np.inf if patience.wait_s is None else patience.wait_s
    options["retries"], options["retry_backoff_s"] = patience.retries, patience.retry_backoff_s
    options["intake_s"], options["intake_token_s"] = entrance.intake_s, entrance.intake_token_s


def _set_model(options: NDArray[np.void], setting: Setting) -> None:
    model = setting.model
    options["max_context"] = model.max_context
    options["kv_bytes_per_token"] = model.kv_bytes_per_token * setting.engine.memory_share(model)
    options["copy_bytes_per_token"] = setting.copy_bytes_per_token
    options["weight_bytes"] = model.weight_bytes
    options["chosen_share"] = 0.0 if model.experts is None else model.experts.per_token / model.experts.count
    options["layer_share"] = 1.0 / model.layers
    options["state_bytes"] = model.state_bytes


def _set_engine(options: NDArray[np.void], setting: Setting) -> None:
    engine = setting.engine
    options["role_change_s"] = engine.role_change_s
    options["block_tokens"] = engine.block_tokens
    options["preemption"] = SWAP if engine.preemption == "swap" else RECOMPUTE
    options["recomputes_there"] = engine.recompute == "there"
    options["least_urgent"] = engine.victim == "least_urgent"
    options["fewest_tokens"] = engine.victim == "fewest_tokens"
    options["waits_last"] = engine.requeue == "last"
    options["asynchronous"] = engine.asynchronous
    options["admission_wait_steps"] = engine.admission_wait_steps
    options["by_admission"] = engine.step_order == "admission"
    options["longest_chunk"] = _UNBOUNDED if engine.longest_chunk is None else engine.longest_chunk
    options["unchunked"] = not engine.chunked_prefill
    options["room_for_chunk"] = engine.admission_room == "chunk"
    options["spares_idle"] = not engine.idle_watermark
    options["layerwise_tokens"] = engine.layerwise_tokens or 0
    options["pulls"] = engine.pulls
    options["first_token"] = FIRST_TOKENS[engine.first_token]


def _set_parts(options: NDArray[np.void], setting: Setting) -> None:
    """Write the options that the optional mechanisms state, and those of speculation."""
    for part in fields(setting.engine):
        own = getattr(getattr(setting.engine, part.name), "engine_options", dict)
        for name, value in own().items():
            options[name] = value
    for name, value in gateway_options(setting.engine.gateway).items():
        options[name] = value
    options["goes_by_reports"] &= options["report_every_s"][0] > 0 and options["goes_by_utilization"][0]
    _set_speculation(options, setting)


def _set_speculation(options: NDArray[np.void], setting: Setting) -> None:
    speculation = setting.engine.speculation
    cost = speculation.draft_cost
    options["speculates"] = speculation.most > 0
    options["adaptive_depth"] = speculation.adaptive
    options["depth"] = speculation.most
    options["acceptance"] = speculation.acceptance
    options["draft_cost"] = 1.0 / setting.model.layers if cost is None else cost
