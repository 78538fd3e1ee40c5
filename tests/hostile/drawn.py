"""Drawn commands that nobody should give: settings, choices, variables, caches, YAMLs, files and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.hostile.contents import ANSWERS, BASES, HOOKS, KINDS_OF_FILE, TRACES, YAMLS
from tests.hostile.settings import POLICIES, keys_of
from tests.hostile.words import BIDI, ESC, GROUPS, NAMES, SETTINGS_OF_VARIABLES, TEXTS, VARIABLES, WHOLE

BEGIN = ("trace=synthetic", "trace.requests=20", "trace.limit=20")
IMPORTED = ("NUMBA_", "POLARS_", "OMP_", "OPENBLAS_")  # read while Python or a library is imported
CACHES = {"HOME": ".cache", "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": ""}  # in what they name, where caches are


@dataclass(frozen=True)
class Command:
    """A command to be given; `kind` is what is hostile in it."""

    kind: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)  # by path: what it is, and its content
    damage: bytes | None = None  # what is done to each file of the cache between two runs

    @property
    def is_apart(self) -> bool:
        """Whether it needs a Python of its own."""
        return any(name.startswith(IMPORTED) and name not in CACHES for name in self.environment)

    def __str__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self.environment.items()]
        files = [f"[{name}: {kind} {content[:60]!r}]" for name, (kind, content) in self.files.items()]
        damage = [] if self.damage is None else [f"[cache: {self.damage[:20]!r}]"]
        return " ".join([self.kind, *parts, *(repr(word[:120]) for word in self.arguments), *files, *damage])


def commands(count: int, seed: int) -> list[Command]:
    """So many commands, the same for the same seed."""
    draws = np.random.default_rng(seed)
    return [_KINDS[int(draws.choice(len(_KINDS), p=_SHARES))](draws) for _ in range(count)]


def _one(draws: np.random.Generator, of: Sequence[str]) -> str:
    return of[int(draws.integers(len(of)))]


def _policy(draws: np.random.Generator) -> str:
    return f"policy={_one(draws, ('chunked', 'chunked', *POLICIES))}"


def _settings(draws: np.random.Generator) -> Command:
    policy = _policy(draws)
    keys = keys_of((policy,))
    arguments = dict.fromkeys(_one(draws, keys) for _ in range(int(draws.integers(1, 4))))
    return Command("settings", (policy, *BEGIN, *(f"{key}={_one(draws, TEXTS)}" for key in arguments)))


def _choices(draws: np.random.Generator) -> Command:
    return Command("choices", (*BEGIN, f"{_one(draws, GROUPS)}={_one(draws, NAMES)}"))


def _words(draws: np.random.Generator) -> Command:
    return Command("words", (_policy(draws), *BEGIN, *(_one(draws, WHOLE) for _ in range(int(draws.integers(1, 3))))))


def _environment(draws: np.random.Generator) -> Command:
    names = dict.fromkeys(_one(draws, VARIABLES) for _ in range(int(draws.integers(1, 4))))
    values = {name: SETTINGS_OF_VARIABLES[int(draws.integers(len(SETTINGS_OF_VARIABLES)))] for name in names}
    return Command("environment", ("policy=chunked", *BEGIN), values)


def _caches(draws: np.random.Generator) -> Command:
    damages = (
        b"",
        b"x",
        b"\x80\x04.",
        b"sealed",
        b"sealed\x80\x04N.",
        b"sealed\x80\x04cnothing\nthere\n.",
        b"{}",
        b"[1]",
        b'{"/": [1]}',
    )
    return Command("caches", ("policy=chunked", *BEGIN), damage=damages[int(draws.integers(len(damages)))])


def _yamls(draws: np.random.Generator) -> Command:
    group = _one(draws, ("model", "gpu", "policy", "trace", "cluster", "engine", "slo", "predictor", "timing", "."))
    content, kind = YAMLS[int(draws.integers(len(YAMLS)))], _one(draws, KINDS_OF_FILE)
    if group == ".":
        return Command("yamls", (*BEGIN, "--config-dir=own"), files={"own/config.yaml": (kind, content)})
    arguments = tuple(word for word in BEGIN if group != "trace" or not word.startswith("trace="))
    beginning = _one(
        draws,
        ("", "", {"model": "defaults: [llama3_8b, _self_]\n", "gpu": "defaults: [h100, _self_]\n"}.get(group, "")),
    )
    return Command(
        "yamls",
        (*arguments, f"{group}=own", "--config-dir=own"),
        files={f"own/{group}/own.yaml": (kind, beginning.encode() + content)},
    )


def _files(draws: np.random.Generator) -> Command:
    name = _one(
        draws,
        ("t.csv", "t.jsonl", "t.json", "t.parquet", "t.gz", "t", f"{ESC}.csv", f"{BIDI}.csv", "a b.csv", "x" * 250),
    )
    path = f"trace.path='{name}'"
    form = _one(
        draws,
        ("", "", "trace.format=azure", "trace.format=mooncake", "trace.format=twin", "trace.format=x", "trace.unit=x"),
    )
    content = TRACES[int(draws.integers(len(TRACES)))]
    return Command(
        "files", ("policy=chunked", path, *filter(None, [form])), files={name: (_one(draws, KINDS_OF_FILE), content)}
    )


def _policies(draws: np.random.Generator) -> Command:
    file = _one(draws, ("mine.py", "mine.py", "random.py", "json.py", "numpy.py", f"{ESC}.py", "a b.py"))
    hook, answer, kind = _one(draws, HOOKS), _one(draws, ANSWERS), _one(draws, BASES)
    head = _one(
        draws,
        (
            "",
            "",
            "",
            "import sys; sys.exit(3)\n",
            "raise BaseException('x')\n",
            "x = (\n",
            "import nothing_there\n",
            "1/0\n",
        ),
    )
    raised = _one(
        draws, ("", "", "raise E()", "raise KeyboardInterrupt", "raise SystemExit(0)", "import sys; sys.stdout.close()")
    )
    text = (
        f"import servelab\n{head}class E(Exception):\n    def __str__(self): raise ValueError('x')\n"
        f"class Mine(servelab.{kind}):\n    def {hook}:\n        {raised or 'pass'}\n        return {answer}\n"
    )
    return Command("policies", (*BEGIN, f"policy={file}:Mine"), files={file: ("file", text.encode())})


_KINDS: tuple[Callable[[np.random.Generator], Command], ...] = (
    *(_settings, _choices, _words, _environment, _caches, _yamls, _files, _policies),
)
_SHARES = (0.35, 0.1, 0.1, 0.1, 0.03, 0.14, 0.1, 0.08)
