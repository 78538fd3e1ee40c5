"""How the GPUs of one instance share a model."""

from __future__ import annotations

from dataclasses import dataclass

from framework.checks import Count, check_fields
from framework.errors import InputError


@dataclass(frozen=True)
class Parallelism:
    """How the GPUs of one instance share a model.

    `tp`: GPUs that split the heads and the matrices of a layer; `dp`: groups of tp GPUs that attend to their own
    sequences (attention data parallelism); `pp`: pipeline stages of tp * dp GPUs; `ep`: groups among which whole
    experts are spread, each expert split over the tp * dp / ep GPUs of a group. Raises InputError for ep that does not
    divide tp * dp.
    """

    tp: Count = 1
    pp: Count = 1
    ep: Count = 1
    dp: Count = 1

    def __post_init__(self) -> None:
        check_fields(self, "parallelism: ")
        if (self.tp * self.dp) % self.ep:
            raise InputError(f"parallelism: ep = {self.ep} does not divide tp * dp = {self.tp * self.dp}")

    @property
    def gpus(self) -> int:
        """GPUs of an instance."""
        return self.tp * self.dp * self.pp

    @property
    def stage_gpus(self) -> int:
        """GPUs of a pipeline stage."""
        return self.tp * self.dp

    @property
    def expert_tp(self) -> int:
        """GPUs over which each expert is split."""
        return self.tp * self.dp // self.ep

    def __str__(self) -> str:
        named = {"tp": self.tp, "pp": self.pp, "ep": self.ep, "dp": self.dp}
        return "-".join(f"{name}{value}" for name, value in named.items() if name == "tp" or value > 1)
