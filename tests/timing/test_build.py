"""The command that makes profiles: what it asks for, makes, keeps and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.parallelism import Parallelism
from framework.timing.kernels import build as command
from framework.timing.kernels.table import Kernels
from framework.timing.shipped.profile_files import cache_directory, profile_path, read_profile, shipped_directory
from framework.timing.shipped.shipped_setups import BACKENDS, GPUS, PLANS, Types
from tests.timing.test_tabulate import DENSE, GPU, kernels

ONE, TWO = Parallelism(), Parallelism(tp=2)
ASKED = command.Request(
    models=(DENSE,),
    gpus=(GPU,),
    backends=("vllm",),
    parallelisms=(ONE,),
    types=Types("bf16", "bf16"),
    kernels="package",
    estimates=False,
    keep=True,
    out=Path(),
    command="build",
)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(source: str, gpu: Gpu, backend: str) -> Kernels:
        if backend != "vllm":
            raise InputError(f"no tables of {backend}")
        return kernels()

    monkeypatch.setattr(command, "load_kernels", load)


def setups(out: Path) -> list[Parallelism]:
    return [parts.setup.parallelism for parts in read_profile(profile_path(out, DENSE.name, GPU.name, "vllm")).entries]


@pytest.mark.slow  # tests/timing/test_small_parts.py reads what has been made
def test_without_words_all_that_ship_are_made() -> None:
    asked = command.parse(command.main.read([]))
    assert tuple(model.name for model in asked.models) == tuple(PLANS)
    assert tuple(gpu.name for gpu in asked.gpus) == GPUS
    assert (asked.backends, asked.parallelisms, asked.types) == (BACKENDS, None, None)
    assert asked.out == shipped_directory()
    assert not asked.keep


def test_names_given_twice_count_once_and_go_to_the_cache() -> None:
    asked = command.parse(
        command.main.read(["model=llama3_8b,llama3_8b", "gpu=h100,l40s", "backend=vllm,vllm", "tp=2", "dtype=fp8"])
    )
    assert [model.name for model in asked.models] == ["llama3_8b"]
    assert [gpu.name for gpu in asked.gpus] == ["h100", "l40s"]
    assert (asked.backends, asked.parallelisms, asked.types) == (("vllm",), (TWO,), Types("fp8", "bf16"))
    assert asked.out == cache_directory()
    assert asked.keep


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["models=x"], "models=x: not understood"),
        (["tp=0"], "tp must be a whole number from 1"),
        (["tp=2", "ep=3"], "ep = 3 does not divide"),
        (["kv_dtype=fp8"], "give dtype= with"),
        (["missing=guess"], "missing must be one of refuse, roofline; got 'guess'"),
    ],
)
def test_mistakes(words: list[str], line: str) -> None:
    with pytest.raises(InputError, match=line):
        command.parse(command.main.read(["model=llama3_8b", "gpu=h100", *words]))


def test_entries_stay_where_a_profile_is_made_larger(tmp_path: Path, tables: None) -> None:
    counted: list[tuple[int, int]] = []
    first = command.build(replace(ASKED, out=tmp_path), lambda done, total: counted.append((done, total)))
    assert (first.entries, len(first.paths), counted) == (1, 1, [(1, 1)])
    command.build(replace(ASKED, out=tmp_path, parallelisms=(TWO,)))
    assert setups(tmp_path) == [ONE, TWO]
    command.build(replace(ASKED, out=tmp_path, parallelisms=(TWO,), keep=False))
    assert setups(tmp_path) == [TWO]


def test_what_cannot_be_made_is_listed_with_the_reason(tmp_path: Path, tables: None) -> None:
    asked = replace(ASKED, out=tmp_path, backends=("other", "vllm"), parallelisms=(ONE, Parallelism(tp=5)))
    made = command.build(asked)
    assert made.entries == 1
    assert made.missing["no tables of other"] == [f"{GPU.name} other"]
    divided = next(reason for reason in made.missing if "tp = 5 does not divide" in reason)
    assert made.missing[divided] == [f"{DENSE.name} {GPU.name} vllm tp5, bf16, bf16 KV"]
    nothing = command.build(replace(asked, parallelisms=(Parallelism(tp=5),), keep=False))
    assert (nothing.entries, nothing.paths, setups(tmp_path)) == (0, [], [ONE])


def test_what_was_not_measured_comes_from_the_datasheet_where_asked_and_the_profile_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without all-reduces and decodes: a ring of 15 us and a link at 0.7 of its peak, KV at 0.7 of the bandwidth."""
    whole = kernels()
    left = {name: rows for name, rows in whole.tables.items() if name not in ("all_reduce", "decode_attention")}
    monkeypatch.setattr(command, "load_kernels", lambda *_: replace(whole, tables=left))
    asked = replace(ASKED, out=tmp_path, parallelisms=(TWO,))
    assert not command.build(asked).entries
    assert command.build(replace(asked, estimates=True)).entries == 1
    profile = read_profile(profile_path(tmp_path, DENSE.name, GPU.name, "vllm"))
    (parts,) = profile.entries
    assert parts.estimated == ("all_reduce", "decode_attention")
    linear, decode = parts["communication"].linear, parts["decode_attention"].decode
    assert linear is not None
    assert decode is not None
    reduces = 2 * DENSE.layers + 1
    sent = linear.knots[-1] * DENSE.hidden * 2
    assert linear.values[-1] == pytest.approx(reduces * (15e-6 + sent / GPU.link_bytes_s), rel=0.01)
    context = decode.contexts[-1]
    read = context * DENSE.layers * 2 * DENSE.kv_heads / 2 * DENSE.head_dim * 2
    assert decode.values[0][-1] == pytest.approx(read / (0.7 * GPU.bandwidth_bytes_s), rel=0.01)


def test_what_was_measured_stays_beside_what_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernels()
    left = {name: rows for name, rows in whole.tables.items() if name != "all_reduce"}
    monkeypatch.setattr(command, "load_kernels", lambda *_: replace(whole, tables=left))
    asked = replace(ASKED, out=tmp_path, keep=True)
    command.build(replace(asked, parallelisms=(ONE,)))
    command.build(replace(asked, parallelisms=(TWO,), estimates=True))
    profile = read_profile(profile_path(tmp_path, DENSE.name, GPU.name, "vllm"))
    found = {parts.setup.parallelism: parts.estimated for parts in profile.entries}
    assert found == {ONE: (), TWO: ("all_reduce",)}


def test_nothing_made_is_an_error(tmp_path: Path, tables: None) -> None:
    with pytest.raises(InputError, match="nothing to write: no tables of other"):
        command.main(["model=llama3_8b", "gpu=h100", "backend=other", f"out={tmp_path}"])
    assert not list(tmp_path.iterdir())


def test_setups_are_those_that_are_asked_for_or_those_that_ship() -> None:
    def of(asked: command.Request, gpu: Gpu = GPU) -> set[tuple[str, str, Parallelism]]:
        made = (setup for _, setup in command._candidates(asked, DENSE, gpu))
        return {(setup.dtype, setup.kv_dtype, setup.parallelism) for setup in made}

    assert of(ASKED) == {("bf16", "bf16", ONE)}
    assert of(replace(ASKED, types=Types("fp8", "bf16"))) == {("fp8", "bf16", ONE)}
    shipped = of(replace(ASKED, types=None, parallelisms=None))
    assert {parallelism for *_, parallelism in shipped} == {Parallelism(tp=tp) for tp in (1, 2, 4, 8)}
    assert {types[:2] for types in shipped} == {("bf16", "bf16")}
    small = replace(GPU, memory_bytes=1e6)
    assert of(ASKED, small) == {("bf16", "bf16", ONE)}  # what is asked for is made even if it does not fit
    assert of(replace(ASKED, types=None, parallelisms=None), small) == set()


def test_what_was_made_is_summed_up(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(bytes(620_000))
    made = command.Made(paths, 1234, {"no tables": ["x", "y"], "no room": ["z"]})
    assert command._summary(replace(ASKED, out=tmp_path), made).splitlines() == [
        f"1,234 entries in 2 profiles, 1.24 MB, in {tmp_path}",
        "not made (1, such as z): no room",
        "not made (2, such as x): no tables",
    ]


def test_entries_of_other_tables_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = kernels(), kernels()
    new = replace(new, provenance=replace(new.provenance, version="another"))
    for tables, parallelism in ((old, ONE), (new, TWO)):
        monkeypatch.setattr(command, "load_kernels", lambda *_, tables=tables: tables)
        command.build(replace(ASKED, out=tmp_path, parallelisms=(parallelism,)))
    assert setups(tmp_path) == [TWO]


def test_a_file_that_is_not_of_vidur_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.csv"
    path.write_text("op,m\ngemm,1\n")
    monkeypatch.setattr(command, "load_csv", lambda *given: given)
    given: Any = command.load_kernels(str(path), GPU)
    assert given == (path, GPU, None)
    with pytest.raises(InputError, match="need a backend"):
        command.load_kernels(str(tmp_path), GPU)
