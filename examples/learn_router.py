"""Learn where prompts go by trial: the cross-entropy method on the weights of six features.

    python examples/learn_router.py

A router sends a prompt to the instance with the least weighted sum of what `servelab.learning.RoutingEnv` shows of it.
Each round tries some weights, all on the same requests, and goes on around the best of them. What it has learned is
judged on requests that it has not met, next to the fewest waiting tokens. Needs `pip install "servelab[learning]"`.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from servelab.learning import RoutingEnv

ROUNDS, TRIED, KEPT = 12, 16, 4
HIDDEN = (1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008)  # seeds of requests that are not learned from
FEWEST_WAITING = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
SCALE = np.array([4000.0, 4000.0, 0.5, 2.0, 20.0, 0.02])  # of a typical value of each feature


def environment(limit: int = 600) -> RoutingEnv:
    """Conversations that share prefixes, on four instances that keep these in their caches."""
    return RoutingEnv("chunked", "mooncake", limit=limit, rate=5, cluster__instances=4, gpu="h100")


def attainment(env: RoutingEnv, weights: NDArray[np.float64], seed: int) -> float:
    """The return of an episode: the share of requests that keep the SLO."""
    seen, _ = env.reset(seed=seed)
    returned, ended = 0.0, False
    while not ended:
        scores = seen[:, : len(weights)] / SCALE @ weights
        seen, reward, ended, _, _ = env.step(scores.argmin())
        returned += reward
    return returned


def learned(env: RoutingEnv, rounds: int = ROUNDS, seed: int = 0) -> NDArray[np.float64]:
    """Weights found by the cross-entropy method, from those of the fewest waiting tokens on."""
    rng = np.random.default_rng(seed)
    mean, spread = FEWEST_WAITING, np.ones(len(FEWEST_WAITING))
    for number in range(rounds):
        tried = [mean, *(mean + spread * rng.standard_normal((TRIED - 1, len(mean))))]
        returns = np.array([attainment(env, weights, number) for weights in tried])
        best = np.argsort(-returns, kind="stable")[:KEPT]
        mean = np.mean([tried[k] for k in best], axis=0)
        spread = 0.7 * np.std([tried[k] for k in best], axis=0) + 0.25 * spread
        print(f"round {number + 1} of {rounds}: best {returns.max():.3f}, mean {returns.mean():.3f}", file=sys.stderr)
    return mean


if __name__ == "__main__":
    env = environment()
    weights = learned(env)
    for name, rule in (("fewest waiting tokens", FEWEST_WAITING), ("learned", weights)):
        found = [attainment(env, rule, seed) for seed in HIDDEN]
        print(f"{name}: {np.mean(found):.3f} of the requests keep the SLO ({min(found):.3f} to {max(found):.3f})")
    print("weights:", " ".join(f"{name} {weight:.2f}" for name, weight in zip(env.features, weights, strict=False)))
