"""The league: every policy on every load, tuned alike on one half of a trace and judged on the other.

    python -m experiments.league                             all policies on the seven loads, 8B on 8 H100; an hour
    python -m experiments.league policy=./mine.py:Mine       a policy of your own next to the shipped results
    python -m experiments.league shipped=true                the shipped results
    python -m experiments.league cells=other dry=true        what the other setups would cost

A policy's figure is the rate at which 90 % of the requests keep the SLO, read off a few offered rates and divided by
the bound on capacity, which no schedule exceeds. Runs are kept in the store, and entries in OUT/league.json: the same
command goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.table import Table

from experiments.league.cost import Cost, cost
from experiments.league.page import page, renew
from experiments.league.plan import KEYS, Plan, read_plan
from experiments.league.play import Entrant, Player, opened, settings_of
from experiments.league.results import SHIPPED, Entry, Played, Results, read, write
from experiments.league.sentences import sentences, spoken
from experiments.league.standing import Standing, ranked, standings
from experiments.league.study import CORE, Cell, read_study
from experiments.tune.base import Configuration
from framework.cli.arguments import ANY
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable, write_whole
from framework.cli.terminal import results_console, tell
from framework.errors import InputError
from framework.report.table_words import add_numbers, open_table
from framework.run.live import told
from framework.run.run_key import is_of_this_code
from framework.run.sweep import Sweep

FILE = "league.json"


@command(
    __doc__,
    keys=KEYS,
    settings=ANY,
    interrupted="interrupted; the entries that ended are kept, and the same command goes on from here",
)
def main(arguments: Arguments) -> None:
    """Play, or show what was played. Raises InputError, and Hydra's errors, for impossible arguments."""
    study = read_study()
    plan = read_plan(arguments, study)
    shipped = read(SHIPPED) if SHIPPED.exists() else None
    if arguments.truth("shipped"):
        if shipped is None:
            raise InputError("there are no shipped results; play the league, and copy its league.json there")
        results = shipped
    elif arguments.truth("dry"):
        print(cost(_left(plan, _kept(plan)), plan, shipped))
        return
    else:
        results = _play(plan, shipped)
    _show(results, plan, arguments)


def _play(plan: Plan, shipped: Results | None) -> Results:
    require_writable(plan.out)
    results = _kept(plan)
    if plan.challenger and shipped is not None and _is_comparable(plan, shipped):
        results = _beside(results, shipped)
    elif plan.challenger and shipped is not None:
        tell("the shipped results have other terms or settings, so they are not shown")
    left = _left(plan, results)
    tell(str(cost(left, plan, shipped or results)))
    sweep = Sweep(plan.shared, plan.out)
    player, refused = Player(plan.terms, sweep), 0
    with told(sweep.store, "league", "league", "entries") as progress:
        for number, (cell, entrant) in enumerate(left, 1):
            progress(number - 1, len(left), refused)
            if cell.name not in results.cells:
                results = results.with_cell(cell.name, opened(cell, plan.terms))
            cell_so_far = results.cells[cell.name]
            start_s = time.process_time()
            entry = player.played(entrant, cell, cell_so_far)
            entry = replace(entry, cpu_s=max(entry.cpu_s, time.process_time() - start_s))
            refused += not entry.capacities_rps
            results = results.with_cell(cell.name, cell_so_far.with_entry(entrant.name, entry))
            write(results, plan.out / FILE)
            rest = cost(left[number:], plan, shipped or results)
            _tell_progress(results.cells[cell.name], entrant.name, f"{number} of {len(left)}", rest)
    return results


def _left(plan: Plan, results: Results) -> list[tuple[Cell, Entrant]]:
    """What is not played yet, load by load."""
    return [
        (cell, entrant)
        for cell in plan.cells
        for entrant in plan.entrants
        if not _is_played(results.cells.get(cell.name), entrant, plan)
    ]


def _is_played(found: Played | None, entrant: Entrant, plan: Plan) -> bool:
    entry = None if found is None else found.entries.get(entrant.name)
    if found is None or entry is None or entrant.name == plan.challenger:  # its file may have changed
        return False
    if not entry.capacities_rps:
        return True
    words = (*entrant.places, *entrant.fixed, "objective=offered", *found.settings)
    return is_of_this_code(entry.code, Configuration(words).settings)


def _kept(plan: Plan) -> Results:
    """The results of an interrupted command. Raises InputError for those of other terms."""
    path = plan.out / FILE
    if not path.exists():
        return Results(plan.made, {})
    results = read(path)
    if results.made != plan.made or not _has_settings(results, plan):
        raise InputError(f"{path} has a league of other terms or settings; give another directory, as out=DIR")
    return results


def _is_comparable(plan: Plan, shipped: Results) -> bool:
    """Whether the plan differs from the shipped results in nothing but the version."""
    return {**shipped.made, "version": ""} == {**plan.made, "version": ""} and _has_settings(shipped, plan)


def _has_settings(results: Results, plan: Plan) -> bool:
    """Whether the cells of the plan that the results have are those of the study."""
    cells = {cell.name: settings_of(cell, plan.terms) for cell in plan.cells}
    return all(one.settings == cells.get(name, one.settings) for name, one in results.cells.items())


def _beside(results: Results, shipped: Results) -> Results:
    """The shipped results with the entries of `results`."""
    found = shipped
    for name, cell in results.cells.items():
        base = shipped.cells.get(name, cell)
        found = found.with_cell(name, replace(base, entries={**base.entries, **cell.entries}))
    return Results(results.made, found.cells)


def _tell_progress(cell: Played, policy: str, done: str, rest: Cost) -> None:
    entry = cell.entries[policy]
    figure = entry.refusal or f"{_figure(entry, cell)}"
    best = next(((name, one) for name, one in ranked(cell)), None)
    lead = "" if best is None else f"; best so far {best[0]} with {_figure(best[1], cell)}"
    tell(f"{done}: {policy} on {spoken(cell.load)}: {figure}{lead}; {rest.cpu_s / 60:.0f} min left")


def _figure(entry: Entry, cell: Played) -> str:
    share = 100 * entry.mean_rps / cell.bound_rps
    return f"{entry.mean_rps / cell.gpus:.3g} requests/s a GPU ({share:.0f} % of the bound)"


def _show(results: Results, plan: Plan, arguments: Arguments) -> None:
    """Print the table, write the page's text and picture, renew the page."""
    from experiments.league.picture import draw

    require_writable(plan.out)
    core = {name: cell for name, cell in results.cells.items() if cell.setup == CORE}
    text = page(results, expected(plan))
    write_whole(plan.out / "league.md", text.encode())
    if core:
        table = standings(core)
        draw(table, core, plan.out)
        console = results_console()
        console.print(_table(table, core, plan.challenger))
        for one in table:
            if one.policy == plan.challenger:
                console.print(f"{one.policy}: {' '.join(sentences(one, core))}", markup=False, highlight=False)
    if (path := arguments.path("page")) is not None:
        renew(path, text)
    tell(f"results in {plan.out}")


def expected(plan: Plan) -> Mapping[str, Sequence[str]]:
    """The policies that belong into each cell, by its name."""
    if plan.challenger:
        return {cell.name: [plan.challenger] for cell in plan.cells}
    return {cell.name: [entrant.name for entrant in plan.entrants] for cell in plan.cells}


def _table(table: Sequence[Standing], cells: Mapping[str, Played], challenger: str) -> Table:
    """The table for the terminal: shares of the bound in percent."""
    shown = open_table()
    shown.add_column("of the bound, %\npolicy", no_wrap=True)
    of_cells = (spoken(name).replace(" ", "\n", 1) for name in cells)
    add_numbers(shown, *of_cells, "mean", "mean\nrank", "regret\n%", "answers\nµs")
    for one in table:
        shares = [f"{100 * one.places[name].share:.1f}" if name in one.places else "–" for name in cells]
        tail = [
            f"{100 * one.mean_share:.1f}",
            f"{one.mean_rank:.1f}",
            f"{100 * one.regret:.1f}",
            f"{one.answer_us:,.0f}",
        ]
        shown.add_row(one.policy, *shares, *tail, style="bold" if one.policy == challenger else None)
    return shown
