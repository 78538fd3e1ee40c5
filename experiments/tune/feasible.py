"""Which points of a space can be launched, known before any run."""

from __future__ import annotations

import functools

from omegaconf import OmegaConf

from experiments.tune.base import Configuration
from experiments.tune.space import Point, Space
from framework.cli.explain import explain
from framework.run.compose import fitting_parts
from framework.system.model import TooLargeError

LARGEST_POOL = 50_000  # points that are checked one by one, in a few seconds
_SHAPING = ("model", "gpu", "cluster", "timing", "engine.kv_fraction")  # settings that decide whether a model fits


class Feasibility:
    """The amount by which a point is infeasible: by the space's requirements, or by memory.

    A model that does not fit counts 1 + the share of the usable memory that is missing; any other refusal of an
    experiment about its model, GPUs and cluster counts 1. `base`: what all points share.
    """

    def __init__(self, space: Space, base: Configuration) -> None:
        self._space = space
        self._configured = functools.cache(base.with_overrides)  # configuration of the groups that a point chooses
        self._refused: dict[tuple[str, ...], tuple[float, str]] = {}

    def violation(self, point: Point) -> float:
        """0 for a point that can be launched."""
        return point.shortfall if point.shortfall > 0 else self._of_shape(point)[0]

    def reason(self, point: Point) -> str:
        """Why it cannot be launched, in one line; empty if it can."""
        return "it misses what the space requires" if point.shortfall > 0 else self._of_shape(point)[1]

    def is_feasible(self, point: Point) -> bool:
        return self.violation(point) == 0

    @functools.cached_property
    def pool(self) -> list[Point] | None:
        """Every feasible configuration once; None for a space that is a continuum, or larger than LARGEST_POOL."""
        if self._space.size > LARGEST_POOL:
            return None
        distinct = {point.overrides: point for point in self._space.points() if point.shortfall == 0}
        return [point for point in distinct.values() if self.is_feasible(point)]

    def nearest_miss(self) -> str:
        """Why the point of a finite space that is nearest to feasible cannot be launched."""
        return self.reason(min(self._space.points(), key=self.violation))

    def _of_shape(self, point: Point) -> tuple[float, str]:
        shape = {
            name: value for name, value in point.settings.items() if name.split(".")[0] in _SHAPING or name in _SHAPING
        }
        key = tuple(f"{name}={value!r}" for name, value in shape.items())
        if key not in self._refused:
            self._refused[key] = self._try(shape)
        return self._refused[key]

    def _try(self, shape: dict[str, object]) -> tuple[float, str]:
        groups = tuple(f"{name}={value}" for name, value in shape.items() if "." not in name)
        config = self._configured(groups).config
        for name, value in shape.items():
            if "." in name:
                OmegaConf.update(config, name, value)
        try:
            fitting_parts(config)
        except Exception as error:
            line = explain(error)
            if line is None:
                raise
            return (1 + error.lacking if isinstance(error, TooLargeError) else 1.0), line
        return 0.0, ""
