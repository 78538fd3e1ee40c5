"""Random numbers that depend only on their purpose, so one caller's questions do not change another's answers.

Each request owns a stream, any number of which can be computed by itself: SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014) read by position, a counter-based generator in the sense of
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from framework.compiler.decorators import compiled

Keys = NDArray[np.uint64]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # increment of SplitMix64's state
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def request_keys(seed: int, requests: int) -> Keys:
    """One 64-bit key for each of a workload's requests, shape (requests,)."""
    start = _output(np.asarray([seed % 2**64], np.uint64) + _GAMMA)
    return _output(start + _GAMMA * np.arange(1, requests + 1, dtype=np.uint64))


@compiled
def uniforms(keys: Keys, index: Integers) -> Floats:
    """Number `index` (0 or more) of each key's stream, in the open interval (0, 1); shapes (k,)."""
    found = np.empty(len(keys), np.float64)
    for k in range(len(keys)):
        found[k] = _uniform(keys[k], index[k])
    return found


@compiled
def _uniform(key: np.uint64, index: int) -> float:
    bits = _mixed(key + _GAMMA * (np.uint64(index) + np.uint64(1)))
    drawn: float = (np.float64(bits >> np.uint64(11)) + 0.5) * 2.0**-53
    return drawn


def normals_of(keys: Keys, requests: Integers, generated: Integers, stride: int) -> Floats:
    """The standard normal of each request's stride, the first being number 1 of its stream; shape (k,)."""
    drawn = np.empty(len(requests))
    _draw(keys, requests, generated, stride, drawn)
    return np.asarray(ndtri(drawn, out=drawn))


@compiled
def _draw(keys: Keys, requests: Integers, generated: Integers, stride: int, uniform: Floats) -> None:
    """Write the uniform numbers of their strides."""
    for k in range(len(requests)):
        uniform[k] = _uniform(keys[requests[k]], generated[k] // stride + 1)


def normals(keys: Keys, index: Integers) -> Floats:
    """Standard normal numbers, drawn as `uniforms` draws."""
    return ndtri(uniforms(keys, index))


@compiled
def _mixed(state: np.uint64) -> np.uint64:
    """SplitMix64's output function; uint64 arithmetic wraps."""
    state = (state ^ (state >> _SHIFTS[0])) * _FACTORS[0]
    state = (state ^ (state >> _SHIFTS[1])) * _FACTORS[1]
    return state ^ (state >> _SHIFTS[2])


@compiled
def _output(states: Keys) -> Keys:
    """The output for each state."""
    found = np.empty_like(states)
    for k in range(len(states)):
        found[k] = _mixed(states[k])
    return found
