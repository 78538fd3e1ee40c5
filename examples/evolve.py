"""A search for a policy by a judge: constants and rules of a text are changed, and what scores better is kept.

python examples/evolve.py 200     # proposals; about four seconds each

Each proposal is judged on training samples. One that is better there is judged on validation samples, and kept if it is
better there too. At the end the best and the first are judged on samples that the search has never met.
"""

import re
import sys

import numpy as np

import servelab

TRAINING, VALIDATION, HIDDEN = 1, 11, (101, 102, 103)  # seeds

FIRST = '''
import servelab


class Router(servelab.Aggregated):
    """Prompts go where a sum of what waits, what the cache lacks, and what decodes is least."""

    batching_mode = "unified"

    def route_prefill(self, request, cluster):
        pool = cluster.prefill
        new = request.input_tokens - pool.cached_tokens(request)
        waits = pool.queued_tokens
        decodes = pool.running + pool.prefilling + pool.incoming
        kv = pool.kv_tokens
        return pool.argmin(1.0 * waits + 1.0 * new + 0.0 * decodes + 0.0 * kv)

    def prioritize(self, queue, cluster):
        left = cluster.requests.input_tokens[queue]
        age = cluster.now_s - cluster.requests.arrival_s[queue]
        return 0.0 * left - 1.0 * age
'''
RULES = [  # one side takes the place of the other
    ("1.0 * waits", "1.0 * waits ** 0.5"),
    ("return pool.argmin(1.0 * waits + 1.0 * new", "return pool.argmin((1.0 * waits + 1.0 * new) * (decodes + 1.0)"),
    ("new = request.input_tokens - pool.cached_tokens(request)", "new = request.input_tokens"),
]
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")


def changed(text, rng):
    """The text with another number, or now and then another rule."""
    if rng.random() < 0.15:
        old, new = RULES[rng.integers(len(RULES))]
        swapped = text.replace(old, new) if old in text else text.replace(new, old)
        if swapped != text:
            return swapped
    places = list(NUMBER.finditer(text))
    place = places[rng.integers(len(places))]
    value = float(place[0])
    value = (
        float(rng.choice([0.5, 2.0, 20.0, 200.0]))
        if value == 0
        else value * float(rng.choice([0.0, 0.3, 0.6, 1.6, 3.0]))
    )
    return text[: place.start()] + repr(round(value, 6)) + text[place.end() :]


def score(text, *seeds):
    """The mean score on the samples of these seeds."""
    return float(np.mean([servelab.judge(text, seed=seed).score for seed in seeds]))


def search(proposals, seed=0):
    """The best text, and its scores next to those of the first on hidden samples."""
    rng = np.random.default_rng(seed)
    best, trained, valid = FIRST, score(FIRST, TRAINING), score(FIRST, VALIDATION)
    for number in range(proposals):
        text = changed(best, rng)
        found = score(text, TRAINING)
        if found > trained and (held := score(text, VALIDATION)) > valid:
            best, trained, valid = text, found, held
            print(f"proposal {number + 1}: training {trained:.4f}, validation {valid:.4f}", flush=True)
    return best, score(FIRST, *HIDDEN), score(best, *HIDDEN)


if __name__ == "__main__":
    best, before, after = search(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    print(best)
    print(f"hidden samples: first {before:.4f}, best {after:.4f}")
