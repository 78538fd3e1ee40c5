"""What a server's software adds to the kernels of a step, and to a request before the scheduler sees it.

Every term is a piece of work, in the order of its place:

- the front end takes a request in: `request_s` for the way there and back (HTTP, process boundaries, the first token's
  way to the client), `token_s` for each prompt token (the tokenizer). With `jitter` above 0, `jitter` times the share
  `late_share` of the requests, drawn by the run's seed, takes longer, by exponential times of mean `late_s`;
- the host forms a step: `host_s` (scheduling, inputs, results of sampling, outputs) and `host_sequence_s` for each
  decode. A synchronous server does this between steps, while the GPU waits; an asynchronous one concurrently with the
  running step. `host_by_tp` has both for more than one GPU, where reaching several processes costs more: the values of
  the largest tensor-parallel degree that is not above the instance's;
- the host launches a step. For a step in a CUDA graph this is part of `host_s`. A step of more than `graph_tokens`
  tokens, or of more than `graph_tokens_per_seat` for each of its `seats`, is launched kernel by kernel,
  `eager_layer_s` a layer, and takes at least as long as that;
- `step_s` of each step is GPU time that no kernel table has (copies of inputs, sampling, gaps between graphs);
- `message_s` is the time that GPUs wait for each other at each of the two collectives of a layer, for each doubling of
  the GPUs of a stage. Tables measure GPUs that begin together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from framework.checks import Count, NotNegative, check_fields, require_at_least, require_count
from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import SERVER_TERMS, Calibration
from framework.timing.step_row import StepRow

_COLLECTIVES = 2  # collectives of a layer: after attention, and after the feed-forward part


@dataclass(frozen=True)
class Server:
    """What one version of the server does, and the cost of its work without a fit; see the module.

    `name` is shown next to results. `graph_tokens` None: graphs hold every step; `graph_tokens_per_seat` None: the
    number of seats does not matter. Raises InputError for invalid values.
    """

    name: str = "none"
    asynchronous: bool = False
    graph_tokens: Count | None = None
    graph_tokens_per_seat: Count | None = None
    seats: Count | None = None
    step_s: NotNegative = 0.0
    message_s: NotNegative = 0.0
    host_s: NotNegative = 0.0
    host_sequence_s: NotNegative = 0.0
    host_by_tp: Mapping[int, Sequence[float]] = field(default_factory=dict, hash=False)
    eager_layer_s: NotNegative = 0.0
    request_s: NotNegative = 0.0
    token_s: NotNegative = 0.0
    jitter: NotNegative = 0.0
    late_share: NotNegative = 0.0
    late_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "server.")
        for tp, seconds in self.host_by_tp.items():
            require_count("server.host_by_tp: tp", tp)
            if len(seconds) != 2:
                raise InputError(
                    f"server.host_by_tp: tp {tp} must have seconds of a step and of a decode, got {seconds}"
                )
            for value in seconds:
                require_at_least(f"server.host_by_tp: tp {tp}", value, 0)

    def fitted(self, calibration: Calibration | None) -> Server:
        """The server with the terms of a calibration in place of its own; None: as it is."""
        if calibration is None:
            return self
        return replace(self, host_by_tp={}, **{term: getattr(calibration, term) for term in SERVER_TERMS})

    def overheads(self, layers: int, parallelism: Parallelism) -> StepRow:
        """What the server adds to the step times of a model with `layers` layers on one instance."""
        host_s, host_sequence_s = self._host(parallelism)
        gpu_s = self.step_s + _COLLECTIVES * layers * self.message_s * math.log2(parallelism.stage_gpus)
        between_s = gpu_s if self.asynchronous else gpu_s + host_s
        between_sequence_s = 0.0 if self.asynchronous else host_sequence_s
        return StepRow(
            base_s=between_s,
            between_sequence_s=between_sequence_s,
            host_s=host_s if self.asynchronous else between_s,
            host_sequence_s=host_sequence_s,
            eager_s=layers * self.eager_layer_s,
            graph_tokens=self._largest_graph(),
            request_s=self.request_s,
            intake_token_s=self.token_s,
            late_share=min(self.jitter * self.late_share, 1.0),
            late_s=self.late_s if self.jitter > 0.0 else 0.0,
        )

    def _largest_graph(self) -> float:
        """Tokens of the largest step that a graph launches."""
        of_any = np.inf if self.graph_tokens is None else float(self.graph_tokens)
        if self.graph_tokens_per_seat is None or self.seats is None:
            return of_any
        return min(of_any, float(self.graph_tokens_per_seat * self.seats))

    def _host(self, parallelism: Parallelism) -> tuple[float, float]:
        """Seconds of the host for a step and for each decode in it."""
        named = [tp for tp in self.host_by_tp if tp <= parallelism.tp]
        if not named:
            return self.host_s, self.host_sequence_s
        step_s, sequence_s = self.host_by_tp[max(named)]
        return step_s, sequence_s
