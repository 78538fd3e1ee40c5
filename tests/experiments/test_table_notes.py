"""What a table says beneath its figures, line by line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from experiments.table import select
from experiments.table.formats import as_latex, as_markdown
from experiments.table.notes import _listed, _lost, slo_of
from experiments.table.replicates import transforms
from experiments.table.select import rank, value_of
from experiments.table.sheet import _fitted_places, _short
from tests.experiments.test_paper_table import (
    ARES,
    CHUNKED,
    DISTSERVE,
    record,
    refusal,
    rows,
    series,
    sheet,
    table,
    text,
)


def notes(*words: str, records: Any) -> str:
    return "\n".join(sheet(records, *words).notes)


def test_latencies_leave_out_what_was_rejected_and_what_failed() -> None:
    """Seven of a hundred and three of them in one run of two; a goodput leaves nothing out."""
    records = [record(seed=0), record(seed=1, completed=90, rejected=7, failed=3)]
    found = notes("metric=p99_ttft_ms", records=records)
    assert "others were rejected or failed: up to 10 % in chunked / synthetic." in found
    assert "rejected or failed" not in notes("metric=goodput_rps", records=records)
    assert "rejected or failed" not in notes("metric=p99_ttft_ms", records=records[:1])
    assert [_lost(record(offered=1, rejected=rejected)) for rejected in (0, 1)] == [0.0, 1.0]


def test_one_slo_is_stated_and_several_are_said_to_differ() -> None:
    one, other = record(seed=0), record(seed=1, config={"slo.ttft_s": 0.25})
    assert "\nSLO: TTFT ≤ 2 s, TPOT ≤ 50 ms.\n" in notes(records=[one, record(seed=1)])
    found = notes("rows=policy,slo.ttft_s", records=[one, other])
    assert "\nSLOs differ: TTFT ≤ 2 s, TPOT ≤ 50 ms; TTFT ≤ 250 ms, TPOT ≤ 50 ms.\n" in found
    assert slo_of(record(config={"slo.ttft_s": None, "slo.tpot_s": 1.0})) == "TPOT ≤ 1 s"
    assert slo_of(record(config={"slo.ttft_s": None, "slo.tpot_s": None})) == "none in force"
    assert slo_of(record(config={"slo.classes.chat.ttft_s": 1.0})).endswith(", limits of their own for classes")


def test_hardware_that_differs_is_not_stated_as_one() -> None:
    assert "\nModel llama3_8b, gpu h100, 5 GPUs." in notes(records=series("chunked", CHUNKED))
    other = record(gpus=8)
    two = [record(), replace(other, choices=other.choices | {"gpu": "h200"})]
    assert "\nModel llama3_8b, 5 to 8 GPUs: compare figures per GPU." in notes("columns=gpu", records=two)
    few = [record(seed=0), record(seed=1, gpus=8, load="closed 4")]
    assert "\nModel llama3_8b, gpu h100, load closed 4, 5 to 8 GPUs: compare figures per GPU." in notes(records=few)


def test_extrapolation_is_the_worst_of_all_runs() -> None:
    records = [
        record(seed=0, extrapolated=0.125, extrapolation=1.5),
        record(seed=1, extrapolated=0.0625, extrapolation=3.0),
    ]
    assert ", up to 12 % of busy time extrapolated, to 3 times the measured size." in notes(records=records)
    assert "extrapolated" not in notes(records=[record(seed=0), record(seed=1)])


def test_versions_and_revisions_are_told_where_they_differ() -> None:
    revisions = [record(seed=0), record(seed=1, git_revision="def")]
    assert "Runs were made by 2 revisions of the code." in notes(records=revisions)
    versions = [record(seed=seed, versions={"servelab": f"0.{seed + 1}"}) for seed in range(2)]
    assert "Runs were made by versions 0.1 and 0.2." in notes("rows=policy,version", records=versions)
    assert "Runs were made" not in notes(records=[record(seed=0), record(seed=1)])


def test_replicates_are_counted() -> None:
    assert "One run a cell: no intervals, and nothing is tested." in notes(records=[record()])
    five, two = series("chunked", CHUNKED), series("ares", CHUNKED[:2])
    assert "over 5 replicates" in notes(records=five)
    found = notes(records=[*five, *two])
    assert "over 2 to 5 replicates" in found
    assert "Fewer than 5 replicates: ares / synthetic." in found
    assert "Fewer than 5 replicates: ares." in notes("columns=metric", records=[*five, *two])
    same = notes(records=series("chunked", [7.0, 7.0, 7.0]))
    assert "No interval where all replicates have the same value." in same
    assert "No interval" not in notes(records=five)


def test_cells_without_runs_and_without_figures_are_named() -> None:
    records = [record(), record("ares"), record(trace="mooncake"), record("ares", seed=1, p99_ttft_ms=None)]
    found = notes("metric=p99_ttft_ms", records=records)
    assert "no run in the store (one that is refused, or fails, leaves none): ares / mooncake." in found
    assert (
        "undefined (nothing completed, or the run has no such thing): ares / synthetic P99 TTFT in 1 of 2 runs."
        in found
    )


def test_headings_are_as_short_as_tells_keys_apart() -> None:
    assert _short(["policy", "slo.ttft_s", "engine.token_budget"]) == ["policy", "ttft_s", "token_budget"]
    assert _short(["trace.seed", "seed", "policy.order"]) == ["trace.seed", "seed", "order"]


def test_figures_of_overloaded_runs_and_of_short_windows_have_marks() -> None:
    """In a terminal, Markdown and LaTeX, each with its meaning below; the worst of the replicates counts."""
    over: dict[str, Any] = {"load_state": "overloaded"}
    short: dict[str, Any] = {"window_is_short": True}
    records = [
        *(record(load_state="stable", window_is_short=False), record(seed=1, load_state="stable")),
        *(record("ares", **over), record("ares", seed=1, load_state="backlogged", **short)),
        *(record("distserve", load_state="backlogged", **short), record("distserve", seed=1)),
    ]
    found, words = sheet(records), " ".join(text(records).split())
    for cells in (words, as_markdown(found)):
        assert "‡§" in cells
        assert "‡: overloaded, latencies are a function of the run's length." in cells
        assert "§: window under 5 times what the SLO allows a request: starting empty flatters all figures." in cells
    latex = as_latex(found)
    assert latex.isascii()
    assert latex.count(r"$^{\ddagger}$$^{\S}$ \\") == 1
    assert latex.count(r"$^{\S}$ \\") == 2
    assert r"$^{\S}$: window under 5 times" in latex
    marked = {one["policy"]: (one["load_state"], one["window_is_short"]) for one in rows(table(records))}
    assert marked == {
        "chunked": ("stable", "false"),
        "ares": ("overloaded", "true"),
        "distserve": ("backlogged", "true"),
    }
    calm = text(records[:2])
    assert "‡" not in calm
    assert "§" not in calm


def test_transforms_are_told_where_they_change_something() -> None:
    """The seed with which requests are drawn is none."""
    assert transforms([record(seed=3), record(seed=4)], ()) == ""
    some = [record(config={"trace.rate_scale": scale, "trace.limit": 50}) for scale in (1.0, 2.0)]
    assert transforms(some, ()) == "limit 50, rate_scale 1 or 2"
    assert transforms(some, ("trace.limit",)) == "rate_scale 1 or 2"


def test_what_follows_the_replicate_does_so_in_every_run() -> None:
    """A seed of the policy is 0 in the first run, as the seed is, and 5 in the other: they are no replicates."""
    same = [record(seed=seed, config={"policy.seed": seed}) for seed in (0, 1)]
    assert len(table(same).cells["goodput_rps"][("chunked",), ("synthetic",)].values) == 2
    other = [same[0], record(seed=1, config={"policy.seed": 5})]
    assert "2 runs differ in policy.seed (0, 5); choose with policy.seed=0" in refusal(other)
    many = [record(seed=seed, config={f"engine.x{k}": 10 + seed + k for k in range(8)}) for seed in (0, 1)]
    assert "; and 2 more; choose" in refusal(
        [many[0], record(seed=1, config={f"engine.x{k}": k * k for k in range(8)})]
    )
    six = [record(seed=seed, config={f"engine.x{k}": 9 * k + seed * (k + 2) for k in range(6)}) for seed in (0, 1)]
    assert "more" not in refusal(six)


def test_numbers_come_before_words_and_those_by_size() -> None:
    assert sorted(["b", 10, True, None, 1.5, "a"], key=rank) == [1.5, 10, "a", "b", None, True]


def test_a_trace_is_named_by_what_chose_it() -> None:
    assert value_of(record(trace="mooncake"), "trace") == "mooncake"
    played: dict[str, Any] = {"trace.path": "own.jsonl"}
    found = record(trace="mooncake", config=played)
    found.summary["trace"] = "own"
    assert value_of(found, "trace") == "own"
    named = record(trace="mooncake", config={"trace.name": "evening"})
    named.summary["trace"] = "evening"
    assert value_of(named, "trace") == "evening"


def marked_as_fitted(*pictures: str) -> tuple[list[str], list[str], int]:
    """Rows and columns that are marked as a whole, and how many cells; x: on a fitted trace, blank: no cell."""
    cells = {
        ((f"row {r}",), (f"column {c}",)): {0: record(source="twin" if sign == "x" else "real")}
        for r, picture in enumerate(pictures)
        for c, sign in enumerate(picture)
        if sign != " "
    }
    selection: Any = SimpleNamespace(cells=cells)
    found = _fitted_places(selection)
    return sorted(row for (row,) in found.rows), sorted(column for (column,) in found.columns), len(found.places)


def test_what_is_fitted_is_marked_with_as_few_marks_as_tell_it() -> None:
    assert marked_as_fitted("x-", "x-") == ([], ["column 0"], 0)
    assert marked_as_fitted("xx", "--") == (["row 0"], [], 0)
    assert marked_as_fitted("x-", "--") == ([], [], 1)
    assert marked_as_fitted("xxx", "x--", "x--") == (["row 0"], ["column 0"], 0)
    assert marked_as_fitted("xxx", "x--", "xx-") == (["row 0"], ["column 0"], 1)
    assert marked_as_fitted("xxx", "---", "--x") == (["row 0"], [], 1)
    assert marked_as_fitted("xx", "- ") == (["row 0"], [], 0)


def test_pairs_that_are_too_few_are_those_of_the_comparison_that_has_most() -> None:
    """Of three seeds against two and three no p-value is below 1/9; of four it is 1/64, of five 1/625."""
    records = [*series("chunked", CHUNKED[:3]), *series("ares", ARES[:2]), *series("distserve", DISTSERVE[:3])]
    found = notes("baseline=chunked", records=records)
    assert "3 pairs are too few to conclude from 2 comparisons, whatever they show: run at least 4 replicates." in found
    assert "2 pairs do not show whether" in found
    many = [8.0, 9.2, 10.1, 11.0, 12.4, 13.1]
    records = [*series("chunked", many), *series("ares", many[::-1]), *series("distserve", DISTSERVE[:3])]
    assert "3 pairs do not show whether" in notes("baseline=chunked", records=records)
    assert "do not show whether" not in notes("baseline=chunked", records=records[:12])


def test_of_many_cells_and_values_the_first_six_are_named() -> None:
    assert select._listed(range(6)) == "0, 1, 2, 3, 4, 5"
    assert select._listed(range(8)) == "0, 1, 2, 3, 4, 5 and 2 more"
    assert _listed("abcdefgh") == "a; b; c; d; e; f and 2 more"
    assert _listed("abcdef") == "a; b; c; d; e; f"
