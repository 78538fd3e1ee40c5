"""Profiles: what is written is read again, what ships can be used, what is damaged says so."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import (
    Calibration,
    Fit,
    Selector,
    find_calibration,
    read_calibrations,
    replace_calibration,
    write_calibrations,
)
from framework.timing.curves import Curve, Surface
from framework.timing.profile import Setup, StepParts
from framework.timing.shipped import profile_files
from framework.timing.shipped.profile_files import Profile, find, profile_path, read_profile, write_profile
from framework.timing.shipped.scale import same_speed
from framework.timing.shipped.shipped_setups import Types, parallelisms, typed
from framework.timing.step_row import StepRow
from framework.timing.table import stack, step_s
from tests.helpers.exact_steps import exact_step_s
from tests.helpers.parts import load, made_up, origin, put, seconds_of

SHIPPED = profile_files.shipped_directory()
PROFILES = sorted(SHIPPED.rglob("*.json.gz"))
PLAIN = Calibration()
FITTED = Calibration(kernel=0.9, communication=1.2, step_s=3e-4, sequence_s=1e-6, request_s=0.02)


def written(tmp_path: Path) -> Path:
    return put(tmp_path, "llama3_8b", "h100", "vllm", made_up(), made_up(parallelism=Parallelism(tp=2)))


# --- parts ----------------------------------------------------------------------------------------------------------


def seconds(parts: StepParts, calibration: Calibration = PLAIN, **step: Any) -> float:
    asked: dict[str, Any] = {"prefixes": [], "chunks": [], "decodes": 0, "context": 0} | step
    return step_s(stack([parts.row(calibration)]), 0, **asked)


def test_a_row_costs_what_the_parts_do() -> None:
    parts = made_up()
    at = {"tokens": 2, "lengths": 1, "sampled": 0}
    expected = (
        parts["overhead"].base_s
        + parts["prefill_attention"].prefill_step_s
        + seconds_of(parts, "prefill_attention")[at["lengths"]]
        + seconds_of(parts, "logits")[0]
    )
    for part in ("gemm", "experts", "elementwise", "communication"):
        expected += seconds_of(parts, part)[at["tokens"]]
    assert seconds(parts, prefixes=[0], chunks=[2048]) == pytest.approx(expected, rel=1e-12)


def test_decodes_read_the_surface() -> None:
    parts = made_up(skew_s=2.0**-40)
    even = seconds(parts, decodes=16, context=4096)
    only = seconds(parts, decodes=16, context=1)
    grid_s = seconds_of(parts, "decode_attention")
    assert even - only == pytest.approx(grid_s[1, 1] - grid_s[1, 0], rel=1e-9)
    assert seconds(parts, decodes=16, context=4096, longest=300) - even == pytest.approx(2.0**-40 * (4800 - 4096))


def test_parts_sum_to_the_row() -> None:
    parts = made_up(experts_s=np.array([1e-3, 1e-3, 2e-3, 3e-3]))
    step: dict[str, Any] = {"prefixes": [512, 0], "chunks": [100, 700], "decodes": 33, "context": 50_000}
    total = sum(step_s(stack([part]), 0, **step) for part in parts.calibrated(FITTED).values())
    assert seconds(parts, FITTED, **step) == pytest.approx(total, rel=1e-12)


def test_calibration_multiplies_kernels_and_adds_overheads() -> None:
    parts = made_up()
    plain, fitted = (seconds(parts, each, decodes=16, context=4096) for each in (PLAIN, FITTED))
    communication = seconds(made_up(), decodes=16, context=4096) - seconds(
        made_up(communication_s=np.zeros(4)), decodes=16, context=4096
    )
    expected = 0.9 * (plain - communication) + 1.2 * communication + 3e-4 + 16e-6
    assert fitted == pytest.approx(expected, rel=1e-9)
    assert parts.row(FITTED).request_s == 0.02


def test_compute_slows_attention_of_prompts_and_what_matrices_take_beyond_reading_weights() -> None:
    """Matrices take 1 s up to 128 tokens, where they read weights, and 3 s for 256, of which 2 s are for arithmetic."""
    tokens = np.array([1.0, 128.0, 256.0, 4096.0])
    flat = np.array([1.0, 1.0, 3.0, 40.0])
    parts = made_up(tokens=tokens, gemm_s=flat, experts_s=2 * flat)
    tiled = replace(parts["prefill_attention"], tile_row_s=0.5, tile_pair_s=0.25)
    parts = replace(parts, rows=dict(parts.rows) | {"prefill_attention": tiled})
    slower = parts.calibrated(Calibration(compute=2.0))
    assert slower["gemm"].linear == Curve.of(tokens, np.array([1.0, 1.0, 5.0, 79.0]))
    assert slower["experts"].linear == Curve.of(tokens, np.array([2.0, 2.0, 10.0, 158.0]))
    attention, before = slower["prefill_attention"], parts["prefill_attention"]
    assert before.attention is not None
    assert attention.attention == before.attention.times(2.0)
    assert (attention.tile_row_s, attention.tile_pair_s) == (1.0, 0.5)
    for part in ("elementwise", "communication", "decode_attention", "logits"):
        assert slower[part] == parts[part]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gemm_s": np.zeros(3)}, "4 knots but 3 values"),
        ({"decode_s": np.zeros((4, 3))}, "3 batch knots but 4 rows"),
        ({"decode_s": np.zeros((3, 3))}, "4 knots but 3 values"),
        ({"attention_s": np.array([0, np.nan, 1])}, "must be finite"),
        ({"logits_s": np.array([-1.0, 1.0])}, "not negative"),
        ({"base_s": math.inf}, "base_s of overhead must be finite"),
        ({"length_limit": -1.0}, "length_limit of prefill_attention must be finite and not negative"),
        ({"tokens": np.array([2.0, 64.0, 2048.0, 4096.0])}, "first knot must be at most 1"),
        ({"sampled": np.array([1.0, 1.0])}, "at least two increasing knots"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made_up(**change)


def test_limits_that_fall_with_the_batch_stay_limits() -> None:
    row = made_up().row(PLAIN)
    assert row.decode_limits is not None
    assert row.decode_limits.knots[-1] == 512
    assert row.decode_limits.values[-2:] == (262144.0, 262144.0)
    assert made_up(context_limits=np.full(3, np.inf)).row(PLAIN).decode_limits is None


# --- files ----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    model, gpu = load("model", "llama3_8b"), load("gpu", "h100")
    before = Profile(origin(model, gpu), (made_up(tokens_limit=math.inf, skew_s=1.25e-12, scaled_from="a100"),))
    after = read_profile(write_profile(tmp_path, before))
    assert after.origin == before.origin
    (old,), (new,) = before.entries, after.entries
    assert (new.setup, new.scaled_from, list(new.rows)) == (old.setup, old.scaled_from, list(old.rows))
    for part, row in old.rows.items():
        for name in (field.name for field in fields(StepRow)):
            was, read = getattr(row, name), getattr(new[part], name)
            assert type(read) is type(was), name
            if isinstance(was, Curve | Surface):
                assert replace(was, values=read.values) == read, name
                np.testing.assert_allclose(read.values, was.values, rtol=5.1e-4)
            elif was is not None:
                np.testing.assert_allclose(read, was, rtol=5.1e-4 if name.endswith("_s") else 0)


def test_a_profile_is_always_the_same_bytes(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one"), written(tmp_path / "other")
    assert one.read_bytes() == other.read_bytes()
    profile = read_profile(one)
    assert write_profile(tmp_path / "again", profile).read_bytes() == one.read_bytes()
    assert [path.name for path in one.parent.iterdir()] == ["llama3_8b.json.gz"]  # no temporary file left


def damaged(path: Path, kind: str) -> None:
    content = path.read_bytes()
    text = gzip.decompress(content)
    entry = json.loads(text)
    if kind == "shape":
        entry["entries"][0]["gemm_us"] = [1.0]
    if kind == "dtype":
        del entry["entries"][0]["dtype"]
    if kind == "word":
        entry["entries"][0]["gemm_us"][1] = "fast"
    if kind == "foreign":
        entry["format"] = "another"
    if kind == "gpu":
        entry["origin"]["device"]["memory_bytes"] = -1
    replaced = {
        "empty": b"",
        "truncated": content[: len(content) // 2],
        "text": b"hello",
        "flipped": content[:-8] + bytes(8),
        "no json": gzip.compress(text[:-20]),
        "list": gzip.compress(b"[1, 2]"),
    }
    path.write_bytes(replaced.get(kind) or (b"" if kind == "empty" else gzip.compress(json.dumps(entry).encode())))


@pytest.mark.parametrize(
    "kind",
    ["empty", "truncated", "text", "flipped", "no json", "foreign", "list", "shape", "dtype", "word", "gpu"],
)
def test_a_damaged_profile_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path)
    damaged(path, kind)
    with pytest.raises(InputError, match=r"llama3_8b\.json\.gz: .*framework\.timing\.kernels\.build") as caught:
        read_profile(path)
    assert "\n" not in str(caught.value)


def test_a_profile_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "h100").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        put(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["h100"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"model\.name"):
        profile_path(tmp_path, name, "h100", "vllm")


def test_the_first_directory_that_has_the_setup_wins(tmp_path: Path) -> None:
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    put(own, "llama3_8b", "h100", "vllm", made_up(base_s=1.0))
    put(shipped, "llama3_8b", "h100", "vllm", made_up(base_s=2.0), made_up(base_s=3.0, parallelism=Parallelism(tp=2)))
    model = load("model", "llama3_8b")

    def base_s(tp: int) -> float | None:
        found = find((own, shipped), model, "h100", "vllm", Setup.of(model, Parallelism(tp=tp)))
        return None if found is None else found.parts["overhead"].base_s

    assert [base_s(tp) for tp in (1, 2, 3)] == [1.0, 3.0, None]


def test_directories_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert profile_files.directories(tmp_path) == (tmp_path, tmp_path / "cache" / "servelab" / "profiles", SHIPPED)
    with pytest.raises(InputError, match="no such directory"):
        profile_files.directories(tmp_path / "absent")


def test_another_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    model = replace(load("model", "llama3_8b"), layers=16)
    with pytest.raises(InputError, match=r"layers = 32, this one has 16: give it another model\.name"):
        find((tmp_path,), model, "h100", "vllm", Setup.of(model, Parallelism()))
    longer = replace(load("model", "llama3_8b"), max_context=1_000_000)  # no matter for a step
    assert find((tmp_path,), longer, "h100", "vllm", Setup.of(longer, Parallelism())) is not None


# --- calibrations ---------------------------------------------------------------------------------------------------


def calibrations(directory: Path, *selectors: Selector) -> Path:
    """A file of fits for h100, vllm; the n-th of them has kernel = n."""
    path = directory / "h100" / "vllm" / "calibration.json"
    write_calibrations(path, [Fit(Calibration(kernel=1.0 + n), selector) for n, selector in enumerate(selectors)])
    return path


def test_calibrations_are_read_as_written(tmp_path: Path) -> None:
    fits = (
        Fit(FITTED, Selector(dtype="fp8"), ("a", "b"), "two rows", "somebody's benchmark", "Apache-2.0"),
        Fit(Calibration(), Selector(model="llama3_8b", dtype="bf16")),
    )
    path = tmp_path / "calibration.json"
    write_calibrations(path, reversed(fits))
    assert read_calibrations(path) == fits
    assert json.loads(path.read_text())["entries"][0]["licence"] == "Apache-2.0"


def test_terms_and_models_that_a_calibration_does_not_name_are_as_by_default(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"format": "servelab calibrations 1", "entries": [{"kernel": 2.0}, {"dtype": "fp8"}]}')
    assert read_calibrations(path) == (Fit(Calibration(kernel=2.0)), Fit(Calibration(), Selector(dtype="fp8")))


def test_the_most_specific_calibration_is_found(tmp_path: Path) -> None:
    """Model and type, model, kind and type, kind, type, any: each is found once those before it are gone."""
    llama = load("model", "llama3_8b")
    ranked = [
        Selector(model="llama3_8b", dtype="bf16"),
        Selector(model="llama3_8b"),
        Selector(kind="dense", dtype="bf16"),
        Selector(kind="dense"),
        Selector(dtype="bf16"),
        Selector(),
    ]
    others = [
        Selector(model="llama3_70b", dtype="bf16"),
        Selector(model="llama3_8b", dtype="fp8"),
        Selector(kind="moe"),
        Selector(kind="dense", dtype="fp8"),
        Selector(dtype="fp8"),
    ]
    for left in range(len(ranked)):
        calibrations(tmp_path, *others, *reversed(ranked[left:]))
        found = find_calibration((tmp_path,), "h100", "vllm", llama)
        assert found is not None
        assert found.selector == ranked[left]
    calibrations(tmp_path, *others)
    assert find_calibration((tmp_path,), "h100", "vllm", llama) is None


def test_a_mixture_of_experts_is_of_that_kind(tmp_path: Path) -> None:
    calibrations(tmp_path, Selector(kind="dense"), Selector(kind="moe"))
    found = [
        find_calibration((tmp_path,), "h100", "vllm", load("model", name)) for name in ("llama3_8b", "mixtral_8x7b")
    ]
    assert [fit and fit.calibration.kernel for fit in found] == [1.0, 2.0]


def test_the_first_directory_with_a_calibration_for_the_model_counts(tmp_path: Path) -> None:
    llama = load("model", "llama3_8b")
    calibrations(tmp_path / "own", Selector(kind="moe"), Selector())
    calibrations(tmp_path / "shipped", Selector.of(llama))
    places = (tmp_path / "none", tmp_path / "own", tmp_path / "shipped")
    found = find_calibration(places, "h100", "vllm", llama)
    assert found is not None
    assert found.selector == Selector()
    calibrations(tmp_path / "own", Selector(kind="moe"))
    found = find_calibration(places, "h100", "vllm", llama)
    assert found is not None
    assert found.selector == Selector.of(llama)
    assert find_calibration(places, "h100", "trtllm", llama) is None
    assert find_calibration(places, "h200", "vllm", llama) is None


def test_one_calibration_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    llama = Selector.of(load("model", "llama3_8b"))
    path = calibrations(tmp_path, Selector(), Selector(model="llama3_8b"))
    assert not replace_calibration(path, Fit(FITTED, llama))
    assert replace_calibration(path, Fit(replace(FITTED, kernel=0.5), llama))
    kernels = {fit.selector: fit.calibration.kernel for fit in read_calibrations(path)}
    assert kernels == {Selector(): 1.0, Selector(model="llama3_8b"): 2.0, llama: 0.5}
    assert not replace_calibration(tmp_path / "new" / "calibration.json", Fit(FITTED))


def test_two_calibrations_for_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 entries for dense bf16"):
        calibrations(tmp_path, *[Selector(kind="dense", dtype="bf16")] * 2)
    assert not list(tmp_path.rglob("*.json"))


_BAD_ENTRIES = (
    *('{"kernel": 0}', '{"step_s": "x"}', '{"rows": 3}', '{"rows": "abc"}', '{"note": 1}', '{"kernels": 2}', "{}, {}"),
    *('{"model": 3}', '{"kind": "sparse"}', '{"dtype": "int3"}', '{"model": "llama3_8b", "kind": "dense"}', "7"),
)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "x"}', '{"format": "servelab calibrations 1"}']
    + [f'{{"format": "servelab calibrations 1", "entries": [{entry}]}}' for entry in _BAD_ENTRIES],
)
def test_bad_calibrations_are_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"calibration\.json: ") as caught:
        read_calibrations(path)
    assert "\n" not in str(caught.value)


# --- what ships -----------------------------------------------------------------------------------------------------


def test_profiles_ship_and_are_small() -> None:
    assert len(PROFILES) >= 100
    twins = (SHIPPED.parents[2] / "traces" / "twins").iterdir()
    assert sum(path.stat().st_size for path in (*PROFILES, *twins)) < 20e6
    assert sum(path.stat().st_size for path in PROFILES) < 18e6


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(gpu, marks=() if gpu == "l40s" else pytest.mark.slow)
        for gpu in sorted({path.parent.parent.name for path in PROFILES})
    ],
)
def test_every_shipped_profile_makes_rows(gpu: str) -> None:
    for path in SHIPPED.glob(f"{gpu}/*/*.json.gz"):
        profile = read_profile(path)
        about = profile.origin
        assert (about.device.name, about.backend, about.model) == (gpu, path.parent.name, path.name[: -len(".json.gz")])
        assert about.licence == "Apache-2.0"
        assert "NVIDIA" in about.citation
        assert about.source.startswith("aiconfigurator-core 0.")
        assert same_speed(about.device, load("gpu", gpu))
        assert about.shape == profile_files.shape_of(load("model", about.model))
        assert len({parts.setup for parts in profile.entries}) == len(profile.entries) > 0
        for parts in profile.entries:
            row = parts.row(PLAIN)  # refuses knots and values that a step cannot be read from
            assert step_s(stack([row]), 0, [0], [512], 8, 8 * 1024) > 0
            assert not parts.scaled_from
            assert parts["gemm"].tokens_limit >= 1024


@pytest.mark.parametrize(
    ("name", "gpu", "backend", "parallelism", "types"),
    [
        ("llama3_8b", "h100", "vllm", "tp1", Types("bf16", "bf16")),
        pytest.param("llama3_8b", "l40s", "sglang", "tp2", Types("fp8", "fp8"), marks=pytest.mark.slow),
        pytest.param("llama3_70b", "h100", "vllm", "tp4", Types("bf16", "bf16"), marks=pytest.mark.slow),
        pytest.param("llama3_70b", "b200", "trtllm", "tp1", Types("nvfp4", "fp8"), marks=pytest.mark.slow),
        ("llama3_70b", "a100", "trtllm", "tp4-pp2", Types("bf16", "bf16")),
        pytest.param("mixtral_8x7b", "h100", "sglang", "tp2", Types("bf16", "bf16"), marks=pytest.mark.slow),
        pytest.param("gpt_oss_120b", "h200", "vllm", "tp2-ep2", Types("bf16", "bf16"), marks=pytest.mark.slow),
        ("deepseek_v3", "h200", "sglang", "tp8", Types("fp8_block", "bf16")),
        pytest.param("llama4_maverick", "h200", "vllm", "tp8", Types("bf16", "bf16"), marks=pytest.mark.slow),
    ],
)
def test_knots_are_close_to_the_full_tables(name: str, gpu: str, backend: str, parallelism: str, types: Types) -> None:
    """Steps between the knots, against every measured shape that they are made of."""
    pytest.importorskip("aiconfigurator_core", reason="no kernel tables to compare with: pip install '.[kernels]'")
    from framework.timing.kernels.read_aiconfigurator import load_package
    from framework.timing.kernels.step_cost import step_cost

    model, (instance,) = typed(load("model", name), types), parallelisms(parallelism)
    found = find((SHIPPED,), model, gpu, backend, Setup.of(model, instance))
    assert found is not None
    tables = stack([found.parts.row(PLAIN)])
    exact = step_cost(load_package(gpu, backend), model, load("gpu", gpu), instance)
    errors = []
    for chunks, decodes, mean in steps(instance.pp * instance.dp):
        decoded, sampled = decodes * mean, len(chunks) + decodes
        expected = exact_step_s(exact, chunks, decodes, decoded, sampled)
        prefixes, new = [prefix for prefix, _ in chunks], [tokens for _, tokens in chunks]
        errors.append(abs(step_s(tables, 0, prefixes, new, decodes, decoded) / expected - 1))
    assert np.median(errors) < 0.02
    assert max(errors) < 0.1


def steps(groups: int) -> Iterator[tuple[list[tuple[int, int]], int, int]]:
    """Prompts alone, decodes alone, and both: chunks, decodes, mean context."""
    prompts = [[(0, tokens)] * groups for tokens in (100, 333, 1000, 2500, 6000)]
    yield from ((prompt, 0, 0) for prompt in prompts)
    decodes = [(batch * groups, mean) for batch in (1, 7, 50, 180) for mean in (150, 900, 3000)]
    yield from (([], batch, mean) for batch, mean in decodes)
    for batch, mean in decodes:
        yield [(0, 600)] * groups, batch, mean
        yield [(2048, 512)] * groups, batch, mean


def test_calibrations_in_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"format": "servelab calibrations 0", "entries": []}')
    with pytest.raises(InputError, match="no calibrations, which are format 'servelab calibrations 1'"):
        read_calibrations(path)
