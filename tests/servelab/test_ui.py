"""The page over a store, by its port: figures as the records have them, new runs, comparisons, and hostile requests."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework.cli.terminal import Standing
from framework.metrics.figures import metric
from framework.metrics.summary import evaluate
from framework.run.job import flattened, stored
from framework.run.live import Running, Told, running_in
from framework.run.store import Record, Store
from servelab.ui.columns import Columns
from tests.conftest import ROOT
from tests.helpers.browser import Tab, program, tab
from tests.helpers.composing import configured
from tests.helpers.results import small_result
from tests.report.test_run_page import SLO, Page

SUMMARY = json.loads(json.dumps(evaluate(small_result(), SLO).summary))
PROGRAM = (sys.executable, "-m", "servelab", "ui", "port=0")


def record(number: int, goodput: float, policy: str = "chunked", **settings: Any) -> Record:
    """A run with the figures of a small one, but for its goodput."""
    config = {"slo.ttft_s": 2.0, "slo.tpot_s": 0.05, "policy.order": "fcfs", "seed": 0} | {
        name.replace("__", "."): value for name, value in settings.items()
    }
    own = {"goodput_rps": goodput, "policy": policy, "usd_per_hour": 3.0, "good_per_usd": 1200 * goodput}
    return Record(f"{number:032x}", config, {"policy": policy, "trace": "mooncake"}, SUMMARY | own, goodput)


def fill(directory: Path) -> list[Record]:
    runs = [record(0, 4.5, trace__rate=5), record(1, 5.25, "ares", trace__rate=5), record(2, 1 / 3, trace__rate=20)]
    for one in runs:
        Store(directory).put(one)
    return runs


@contextmanager
def showing(store: Path) -> Iterator[int]:
    """The port of a server over a store, which ends well when it is interrupted."""
    words = [*PROGRAM, f"store={store}"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ ", process.stdout.readline())
        assert found is not None
        yield int(found[1])
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()


def asked(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and body of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body.decode()


def read(port: int, path: str) -> Any:
    status, body = asked(port, path)
    assert status == 200, body
    return json.loads(body)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, list[Record]]]:
    store = tmp_path_factory.mktemp("shown") / "results"
    runs = fill(store)
    with showing(store) as port:
        yield port, store, runs


def test_the_page_has_the_settings_that_vary_and_the_figures_of_each_run(
    shown: tuple[int, Path, list[Record]],
) -> None:
    port, _, runs = shown
    found = read(port, "/runs?figures=goodput_rps,good_per_usd,p99_ttft_ms,slo_attainment")
    assert found["keys"][:3] == [one.key for one in runs]
    assert found["slo"] == ["TTFT ≤ 2 s, TPOT ≤ 50 ms"]
    settings = {one["name"]: [one["values"][code] for code in one["codes"]][:3] for one in found["settings"]}
    assert settings == {"policy": ["chunked", "ares", "chunked"], "trace.rate": ["5", "5", "20"]}
    for one in found["figures"]:
        assert one["values"][:3] == [run.summary[one["key"]] for run in runs]
        assert (one["words"], one["better"]) == (metric(one["key"]).on_page, int(metric(one["key"]).better))
    numbers = {
        key for key, value in SUMMARY.items() if type(value) in (int, float) and math.isfinite(value)
    }  # all can be asked for
    assert {one["key"] for one in found["known"]} >= numbers


def test_two_runs_are_shown_side_by_side(shown: tuple[int, Path, list[Record]]) -> None:
    port, _, (first, second, _) = shown
    status, body = asked(port, f"/run?keys={first.key},{second.key}")
    assert status == 200
    page = Page(body)
    assert {4.5, 5.25} <= {float(one["value"] or "nan") for one in page.every("data")}
    assert "Besides the policy" not in page.text
    rows = re.findall(r"<tr><td>policy</td><td>chunked</td><td>ares</td></tr>", body)
    assert len(rows) == 1
    assert "<td>price of the GPUs (USD/hour)</td>" in body
    assert f"of {first.key}" in asked(port, f"/run?keys={first.key}")[1]


def test_what_a_policy_brings_along_is_no_setting_of_its_own() -> None:
    columns = Columns()
    for number, (policy, cached, budget) in enumerate([("a", True, 1), ("b", False, 1), ("b", False, 2)]):
        columns.add(record(number, 1.0, policy, engine__prefix_cache=cached, engine__token_budget=budget))
    assert columns.varying() == ["policy", "engine.token_budget"]


def test_what_a_gpu_brings_along_is_no_setting_of_its_own() -> None:
    columns = Columns()
    for number, (gpu, speed) in enumerate([("h100", 64e9), ("a100", 32e9), ("b200", 64e9)]):
        run = record(number, 1.0, cluster__gpu__pcie_bytes_s=speed)
        columns.add(replace(run, choices={**run.choices, "gpu": gpu}))
    assert columns.varying() == ["gpu"]


def test_runs_that_end_are_seen_and_nothing_is_written(shown: tuple[int, Path, list[Record]]) -> None:
    port, store, _ = shown
    before = read(port, "/live")
    epoch, count = before["epoch"], before["runs"]
    new = record(70, 9.0, trace__rate=40)
    Store(store).put(new)
    files = sorted(store.rglob("*"))
    after = read(port, "/live")
    assert (after["epoch"], after["runs"]) == (epoch, count + 1)
    more = read(port, f"/runs?epoch={epoch}&since={count}&figures=goodput_rps")
    assert (more["since"], more["keys"], more["figures"][0]["values"]) == (count, [new.key], [9.0])
    Store(store).put(record(71, 1.0, seed=1))  # another setting varies: what was read no longer holds
    changed = read(port, "/live")
    assert changed["epoch"] > epoch
    assert read(port, f"/runs?epoch={epoch}&since={count}")["since"] == 0
    Store(store).remove([f"{71:032x}"])
    assert read(port, "/live")["epoch"] > changed["epoch"]
    assert sorted(store.rglob("*")) == files


def test_a_damaged_record_is_named_and_the_others_are_shown(shown: tuple[int, Path, list[Record]]) -> None:
    port, store, _ = shown
    count = read(port, "/live")["runs"]
    damaged = store / "records" / "damaged.json"
    damaged.write_text("{")
    said = read(port, "/live")
    damaged.unlink()
    assert said["runs"] == count
    assert [str(damaged) in line for line in said["trouble"]] == [True]


def test_what_runs_now_is_shown_until_it_ends_or_dies(
    shown: tuple[int, Path, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, store, _ = shown
    monkeypatch.setattr("framework.run.live._FIRST_S", -1.0)
    told = Told(store, "sweep", "runs")
    told.tell(Standing(3, 12, 1, "goodput 4.50 req/s", left_s=9.0))
    (one,) = read(port, "/live")["running"]
    assert [one[name] for name in ("what", "unit", "done", "total", "failed", "best")] == [
        *("sweep", "runs", 3, 12, 1, "goodput 4.50 req/s"),
    ]
    assert one["time_left_s"] == 9.0
    told.end()
    assert read(port, "/live")["running"] == []
    assert not (store / "running").exists()
    dead = subprocess.Popen(["true"])
    dead.wait()
    (store / "running").mkdir()
    lost = Running("lost", "runs", host=socket.gethostname(), pid=dead.pid, told_s=time.time())
    for number, other in enumerate((lost, replace(lost, pid=os.getpid()), replace(lost, host="elsewhere", told_s=0.0))):
        (store / "running" / f"{number}.json").write_text(json.dumps(other.__dict__))
    (store / "running" / "x.json").write_text("[1]")
    assert [found.pid for found in running_in(store)] == [os.getpid()]
    for file in (store / "running").iterdir():
        file.unlink()
    (store / "running").rmdir()


KEY = f"{0:032x}"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nothing", 404, "there is no such page"),
        ("/../../etc/passwd", 404, "there is no such page"),
        ("/%2e%2e/%2e%2e/etc/passwd", 404, "there is no such page"),
        ("/look.css/../server.py", 404, "there is no such page"),
        ("/server.py", 404, "there is no such page"),
        ("/run", 400, "keys: one run, or 2 that differ"),
        (f"/run?keys={KEY},{KEY}", 400, "keys: one run, or 2 that differ"),
        ("/run?keys=../../etc/passwd", 404, "the store has no run '../../etc/passwd'"),
        ("/run?keys=%00%ff", 404, "the store has no run"),
        ("/run?keys=<script>alert(1)</script>", 404, "the store has no run"),
        (f"/why?keys={'f' * 32}", 404, "the store has no run"),
        (f"/compare?keys={KEY}", 400, "compare takes two runs"),
        (f"/page?keys={KEY}&keys={KEY}", 400, "keys: is given twice"),
        ("/runs?since=-1", 400, "since must be a whole number"),
        ("/runs?since=9999999999999", 400, "since must be a whole number"),
        ("/runs?since=%D9%A3", 400, "since must be a whole number"),
        ("/runs?figures=nonsense", 400, "figures: no run has 'nonsense'"),
        (f"/runs?figures={','.join(['mfu'] * 41)}", 400, "figures: at most 40"),
        ("/runs?other=1", 400, "'other': not understood; there is epoch, since, figures"),
        (f"/live?{'x' * 5000}", 414, "the question is longer than 4,000 characters"),
    ],
)
def test_a_hostile_request_gets_one_clear_line(
    shown: tuple[int, Path, list[Record]], path: str, status: int, words: str
) -> None:
    found, body = asked(shown[0], path)
    assert found == status
    assert words in body
    assert body.count("\n") == 1


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "127.0.0.1:x", "", "[::2]:80", "a" * 5000]
)
def test_another_name_of_this_machine_is_refused(shown: tuple[int, Path, list[Record]], host: str) -> None:
    status, body = asked(shown[0], "/runs", Host=host)
    assert (status, body.count("\n")) == (403, 1)
    assert "127.0.0.1 and localhost alone" in body


def test_another_site_and_other_methods_are_refused(shown: tuple[int, Path, list[Record]]) -> None:
    port = shown[0]
    assert asked(port, "/runs", Host="localhost:1")[0] == 200
    assert asked(port, "/page", Sec_Fetch_Site="cross-site") == (403, "another site asks; open the page itself\n")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert asked(port, "/runs", method) == (405, "this server only shows, with GET\n")


def test_a_line_that_is_no_http_gets_an_answer_and_the_server_goes_on(shown: tuple[int, Path, list[Record]]) -> None:
    with socket.create_connection(("127.0.0.1", shown[0]), timeout=20) as connection:
        connection.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 400")
    assert read(shown[0], "/live")["runs"] >= 3


def test_the_page_names_no_other_address_and_its_policy_allows_none(shown: tuple[int, Path, list[Record]]) -> None:
    port = shown[0]
    _, page = asked(port, "/")
    assert f"Runs in <code>{shown[1]}</code>" in page
    found = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert set(found) == {"data:,", "/look.css", "/main.js"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("HEAD", "/")
    assert "default-src 'none'; script-src 'self'" in str(connection.getresponse().headers["Content-Security-Policy"])
    for name in ("main", "state", "parts", "filters", "picked", "table", "pivot", "pareto", "detail", "live"):
        status, script = asked(port, f"/{name}.js")
        assert status == 200
        assert set(re.findall(r"https?://\S*", script)) <= {'https://vega.github.io/schema/vega-lite/v6.json",'}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["port=70000"], "error: port must be a whole number from 0 to 65,535, got '70000'"),
        (["store=run.py"], "error: store=run.py: is no directory; name the store of a sweep"),
    ],
)
def test_a_wrong_argument_is_one_line(words: list[str], line: str) -> None:
    from servelab.ui_command import main

    with pytest.raises(Exception, match=re.escape(line.removeprefix("error: "))):
        main(words)


# --- runs that are run again, and the page in a browser ---------------------------------------------------------------


_OVERLOADED = ("trace=azure_conv", "trace.limit=300", "cluster.instances=2")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, list[Record]]]:
    """A store of real runs: two policies, two rates, two seeds."""
    store = tmp_path_factory.mktemp("real") / "results"
    every = [
        configured(f"policy={policy}", *_OVERLOADED, f"trace.rate={rate}", f"seed={seed}")
        for policy in ("chunked", "distserve")
        for rate in (20, 120)
        for seed in (0, 1)
    ]
    choices = ({"policy": one.policy._target_.split(".")[1], "trace": "azure_conv", "gpu": "h100"} for one in every)
    runs = [stored(one, chosen, Store(store)) for one, chosen in zip(every, choices, strict=True)]
    assert all(flattened(one)["trace.rate"] == run.config["trace.rate"] for one, run in zip(every, runs, strict=True))
    with showing(store) as port:
        yield port, runs


@pytest.mark.slow
def test_a_run_that_is_run_again_has_the_figures_of_its_record(real: tuple[int, list[Record]]) -> None:
    port, runs = real
    worst = min(runs, key=lambda one: one.summary["slo_attainment"])
    whys = []
    for one in (worst, runs[2]):
        status, body = asked(port, f"/page?keys={one.key}")
        assert status == 200
        assert Page(body).data == json.loads(json.dumps(one.summary))
        status, why = asked(port, f"/why?keys={one.key}")
        assert status == 200
        assert "Other code" not in why
        whys.append(why)
    lost = worst.summary["offered"] - round(worst.summary["slo_attainment"] * worst.summary["offered"])
    assert lost > 0
    assert f"{lost:,} of {worst.summary['offered']:,} requests were lost" in Page(whys[0]).text
    status, body = asked(port, f"/compare?keys={runs[2].key},{runs[6].key}")
    assert status == 200
    assert Page(body).data == json.loads(json.dumps([runs[2].summary, runs[6].summary]))
    assert "Each run less the first one, request by request" in Page(body).text


@pytest.mark.slow
def test_a_run_that_cannot_be_run_again_says_why(tmp_path: Path) -> None:
    (one, *_) = fill(tmp_path)
    with showing(tmp_path) as port:
        status, body = asked(port, f"/why?keys={one.key}")
        assert status == 422
        assert body.startswith("the run cannot be run again here: ")
        assert body.count("\n") == 1


@contextmanager
def opened(port: int, home: Path, width: int, scheme: str) -> Iterator[Tab]:
    browser = program()
    if browser is None:
        pytest.skip("no Chromium")
    with tab(browser, home) as page:
        page.resize(width, 900)
        page.prefer(scheme)
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_for("document.querySelector('table.runs td')")
        yield page
        assert page.troubles == []
        assert page.ask("document.documentElement.scrollWidth") <= width
        outside = "performance.getEntriesByType('resource').filter((one) => !one.name.startsWith(location.origin))"
        assert page.ask(f"{outside}.length") == 0


def cells(page: Tab, selector: str) -> list[str]:
    found = page.ask(f"[...document.querySelectorAll('{selector}')].map((one) => one.innerText.trim())")
    return [str(one) for one in found]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_the_question_of_a_stranger_is_answered_in_a_few_clicks(
    real: tuple[int, list[Record]], tmp_path: Path, width: int, scheme: str
) -> None:
    port, runs = real
    best = max(runs, key=lambda one: one.summary["good_per_usd"])
    with opened(port, tmp_path, width, scheme) as page:
        said = page.ask("document.getElementById('slo').textContent")
        assert said == "SLO: TTFT ≤ 2 s, TPOT ≤ 50 ms; all runs: window too short"
        tile = "[...document.querySelectorAll('#best .tile')].find((one) => one.innerText.includes('per USD'))"
        assert float(page.ask(f"{tile}.querySelector('data').value")) == best.summary["good_per_usd"]
        page.ask(f"{tile}.click()")
        page.wait_for("document.querySelector('#detail .why p:not(.note)')")
        page.ask("document.querySelector('#detail .close').click()")
        first = "document.querySelector('table.runs tbody tr')"
        ranked = [one for one in runs if one.summary["good_per_usd"] == best.summary["good_per_usd"]]
        assert page.ask(f"{first}.dataset.key") in {one.key for one in ranked}
        page.ask("[...document.querySelectorAll('table.runs tbody tr')].at(-1).querySelector('button').click()")
        page.wait_for("document.querySelector('#detail .finding') && document.querySelector('#detail .beside td')")
        said = str(page.ask("document.getElementById('detail').innerText"))
        assert "Why goodput was lost" in said
        assert "Settings that differ" in said
        assert "It has goodput (requests/s) " in said
        assert "; price of the GPUs (USD/hour) " in said


@pytest.mark.slow
def test_a_long_sweep_that_runs_now_fits_a_phone(
    shown: tuple[int, Path, list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, store, _ = shown
    monkeypatch.setattr("framework.run.live._FIRST_S", -1.0)
    told = Told(store, f"sweep policy={','.join(['chunked'] * 12)}", "runs")
    told.tell(Standing(3, 12, left_s=9.0))
    with opened(port, tmp_path, 390, "dark") as page:
        page.wait_for("document.querySelector('.running progress')")
    told.end()


@pytest.mark.slow
def test_filters_groups_pivot_and_front_agree_with_the_records(real: tuple[int, list[Record]], tmp_path: Path) -> None:
    port, runs = real
    with opened(port, tmp_path, 1440, "light") as page:
        choose = "document.querySelector('details.menu[data-name=policy] input').click()"
        page.ask(choose)
        page.wait_for("document.querySelectorAll('table.runs tbody tr').length == 4")
        assert "8 runs, 4 of them shown" in page.ask("document.getElementById('count').textContent")
        page.ask(choose)
        page.ask(
            "[...document.querySelectorAll('#shown button.link')]"
            ".find((one) => one.innerText == 'mean over seeds').click()"
        )
        page.wait_for("document.querySelectorAll('table.runs tbody tr').length == 4")
        page.ask("document.getElementById('tab-pivot').click()")
        found = {
            float(one) for one in page.ask("[...document.querySelectorAll('table.heat data')].map((one) => one.value)")
        }
        by_cell: dict[tuple[Any, Any], float] = {}
        for one in runs:
            place = one.choices["policy"], one.config["trace.rate"]
            by_cell[place] = max(by_cell.get(place, 0.0), one.summary["goodput_rps"])
        page.ask(
            "(() => { const field = [...document.querySelectorAll('.fields select')][1]; field.value = 'trace.rate';"
            " field.dispatchEvent(new Event('change')); })()"
        )
        page.wait_for("document.querySelectorAll('table.heat data').length == 4")
        found = {
            float(one) for one in page.ask("[...document.querySelectorAll('table.heat data')].map((one) => one.value)")
        }
        assert found == set(by_cell.values())
        page.ask("document.getElementById('tab-pareto').click()")
        page.wait_for("document.querySelector('.picture svg')")
        values = "[...one.querySelectorAll('data')].map((it) => Number(it.value))"
        front = page.ask(f"[...document.querySelectorAll('#shown tbody tr')].map((one) => {values})")
        points = {(one.summary["usd_per_hour"], one.summary["goodput_rps"]) for one in runs}
        expected = sorted(
            (x, y) for x, y in points if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)
        )
        assert sorted(map(tuple, front)) == expected
