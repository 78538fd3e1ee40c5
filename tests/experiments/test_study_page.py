"""The page of a study: every trial with its settings, figures in their units, and points that say their trial."""

from __future__ import annotations

import json
from dataclasses import replace

from experiments.tune.goals import Goal
from experiments.tune.page.study_page import study_page
from experiments.tune.result import Findings, Row
from tests.experiments.test_tune_kept import SPACE, found
from tests.report.test_run_page import Page, without_scripts

STUDY = found((1, 1, 2.0), (1, 2, 4.0), (3, 1, 10.0), (2, 2, 7.0))
REFUSED = Row(4, "infeasible", (), SPACE.point({"a": 2, "b": 1, "c": 4.0}), {"refusal": "<b>too much</b>"})


def test_every_trial_is_there_with_its_figures_and_why_it_was_not_run() -> None:
    page = Page(study_page(replace(STUDY, rows=(*STUDY.rows, REFUSED)), ["python run.py +tuned=own"]))
    assert [(one["trial"], one["outcome"], one["values"]) for one in page.data][-2:] == [
        *((3, "complete", [7.0]), (4, "infeasible", [])),
    ]
    assert "4 trials, 1 infeasible; space own, 6 configurations that fit" in page.text
    assert "best: goodput 10.0 req/s, with a=3, b=1, c=2.0" in page.text
    assert "python run.py +tuned=own" in page.text
    assert "<b>too much</b>" in page.text  # as text, not as markup
    assert {float(one["value"] or "nan") for one in page.every("data")} >= {2.0, 4.0, 10.0, 7.0, 75.0, 25.0}
    assert {"Course", "What mattered", "Settings", "All trials"} <= {text for _, text in page.texts}
    assert "Pareto front" not in page.text


def test_the_settings_that_matter_most_come_first() -> None:
    content = without_scripts(study_page(STUDY, []))
    places = [content.index(f"Table: {name}<") for name in ("b", "a", "c")]
    assert places == sorted(places)


def test_points_say_their_trial_and_the_best_so_far_rises() -> None:
    content = study_page(STUDY, [])
    charts = [json.loads(part.partition("</script>")[0]) for part in content.split('class="chart">')[1:]]
    if not charts:  # the package of pictures is not installed
        return
    dots, line = charts[0]["series"]
    assert dots["behind"][2] == "trial 2: goodput 10.0 req/s; a=3, b=1, c=2.0"
    assert line["y"] == [2.0, 4.0, 10.0, 10.0]


def test_several_goals_have_a_front() -> None:
    rows = [
        Row(k, "complete", values, SPACE.point({"a": k + 1, "b": 1, "c": 1.0}), {})
        for k, values in enumerate([(1.0, 9.0), (2.0, 3.0), (3.0, 5.0)])
    ]
    goals = (Goal("goodput_rps"), Goal("cost_usd", maximize=False))
    page = Page(study_page(Findings("two", SPACE, None, goals, tuple(rows), {}), []))
    assert "Pareto front" in page.text
    assert "What mattered" not in page.text
