"""Bugs of numbers that somebody thought of, by name: each must die in the quick tests of its room.

Each is a change to the syntax tree of one function, so that it outlives what is moved or laid out anew.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT


@dataclass(frozen=True)
class Named:
    """A bug: in `function` of `module`, `after` stands in place of the statement or expression `before`.

    `before` occurs there once; an empty `after` leaves a statement out. An empty `function` is the module itself.
    """

    name: str
    module: str
    function: str
    before: str
    after: str

    @property
    def file(self) -> Path:
        """Relative to the root."""
        return Path(*self.module.split(".")).with_suffix(".py")

    def line(self) -> int:
        """Where the statement begins that it changes."""
        return self._place(ast.parse((ROOT / self.file).read_text()))[3]

    def text(self) -> str:
        """The module with the bug. Raises ValueError where `before` does not occur once."""
        tree = ast.parse((ROOT / self.file).read_text())
        parent, name, index, _ = self._place(tree)
        new = _parsed(self.after) if self.after else ast.Pass()
        if index is None:
            setattr(parent, name, new)
        else:
            getattr(parent, name)[index] = new
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    def _place(self, tree: ast.Module) -> tuple[ast.AST, str, int | None, int]:
        wanted = ast.dump(_parsed(self.before))
        found = [place for place, node in _nodes(_function(tree, self.function), 0) if ast.dump(node) == wanted]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.module} {self.function} has {len(found)} times {self.before!r}")
        return found[0]


def _parsed(text: str) -> ast.AST:
    """A statement, or the expression that it consists of, as it is read and not assigned to."""
    try:
        (statement,) = ast.parse(text).body
    except SyntaxError:  # `return x` alone is one to the parser too
        raise ValueError(f"neither a statement nor an expression: {text}") from None
    return statement.value if isinstance(statement, ast.Expr) else statement


def _function(tree: ast.Module, name: str) -> ast.AST:
    node: ast.AST = tree
    for part in filter(None, name.split(".")):
        inside = [one for one in ast.walk(node) if one is not node and getattr(one, "name", None) == part]
        if len(inside) != 1:
            raise ValueError(f"{len(inside)} functions are named {name}")
        node = inside[0]
    return node


def _nodes(parent: ast.AST, line: int) -> Iterator[tuple[tuple[ast.AST, str, int | None, int], ast.AST]]:
    """All that is below a node, with its place and the line where its statement begins."""
    for name, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(node, ast.AST):
                at = node.lineno if isinstance(node, ast.stmt) else line
                yield (parent, name, index, at), node
                yield from _nodes(node, at)


_STABILITY, _GOODPUT = "framework.objective.stability", "framework.objective.goodput"
NAMED = (
    # --- objective ---
    Named("capacity is judged on the whole run", _STABILITY, "read", "good[half:]", "good"),
    Named("attainment that fades is ignored", _STABILITY, "read", "not fades", "True"),
    Named(
        "a request that comes as the last one ends is disturbed by it",
        _STABILITY,
        "undisturbed_misses",
        "arrival_s[1:] >= np.fmax.accumulate(end_s[order])[:-1]",
        "arrival_s[1:] > np.fmax.accumulate(end_s[order])[:-1]",
    ),
    Named(
        "a queue that is turned away before the second half is no loss",
        _STABILITY,
        "_neglected",
        "(first - second) / half",
        "0.0",
    ),
    Named(
        "limits are tightened for the requests that were sent",
        "framework.objective.tightness",
        "tightness",
        "clock_of(result, scaled)",
        "replace(clock_of(result, scaled), overdue=None)",
    ),
    Named(
        "requests that were not served are left out of limits",
        "framework.objective.run_limits",
        "figure",
        "np.inf",
        "np.nan",
    ),
    Named(
        "the bound knows nothing of prompts that a policy cuts",
        _GOODPUT,
        "_as_planned",
        "('batching', 'on_tick', 'decide', 'split_at')",
        "('batching', 'on_tick', 'decide')",
    ),
    Named("the bound knows nothing of roles that change", _GOODPUT, "_as_planned", "any_role(spec)", "spec"),
    Named("the bound knows nothing of GPUs that are shared", _GOODPUT, "_as_planned", "any_stream(spec)", "spec"),
    # --- metrics ---
    Named(
        "scaling leaves limits on slowdowns",
        "framework.metrics.slo",
        "Slo.scaled",
        "None if self.slowdown is None else self.slowdown.scaled(factor)",
        "self.slowdown",
    ),
    Named(
        "turns of sessions that were held back count",
        "framework.metrics.slo",
        "judge",
        "sent_in_time(result, slo.allowed_s(workload))",
        "True",
    ),
    Named(
        "the last window outlasts the run",
        "framework.metrics.series",
        "Windows.edges_s",
        "edges_s[-1] = max(self.end_s, edges_s[-2])",
        "",
    ),
    Named(
        "a run ends with its last request",
        "framework.metrics.series",
        "span_s",
        "max(last_s, float((leaps['start_s'] + _lasting_s(leaps, leaps['steps'])).max()))",
        "last_s",
    ),
    # --- bound ---
    Named(
        "streams that share a GPU are one",
        "framework.bound.bound",
        "_search",
        "streams_apart(setting.cluster, setting.engine)",
        "setting.cluster",
    ),
    Named(
        "outputs go on beyond the context",
        "framework.bound.bound",
        "bound",
        "within_context(setting.workload, setting.model.max_context)",
        "setting.workload",
    ),
    # --- workload, traces ---
    Named(
        "an output ends a token before the context does",
        "framework.workload.requests",
        "within_context",
        "max_context - workload.input_tokens",
        "max_context - workload.input_tokens - 1",
    ),
    Named(
        "sessions of all blocks of a sample have one name",
        "traces.transforms",
        "resample",
        "piece * _names(trace, 'session_id')",
        "0 * piece",
    ),
    # --- store ---
    Named(
        "the last record of a segment is removed with the others",
        "framework.run.store",
        "Store.remove",
        "if len(left):\n    self._write_segment(left)",
        "if len(left) > 1:\n    self._write_segment(left)",
    ),
    Named(
        "versions of libraries are not part of a key",
        "framework.run.run_key",
        "code_hash",
        "(*contents, *releases)",
        "(*contents,)",
    ),
    # --- calibration ---
    Named(
        "compute slows all of linear layers",
        "framework.calibration.apply",
        "apply",
        "curve.rising_faster(COMPUTE_TOKENS, calibration.compute)",
        "curve.times(calibration.compute)",
    ),
    Named(
        "what is held out is fitted to",
        "framework.calibration.fit",
        "calibrate",
        "round(until * len(each.benchmark))",
        "len(each.benchmark)",
    ),
    Named(
        "the error of a factor has no unit",
        "framework.calibration.optimise",
        "Term.error",
        "value if self.factor else 1.0",
        "1.0",
    ),
    Named(
        "a replay lasts from time 0",
        "framework.calibration.replay",
        "replay",
        "requests['end_s'].max() - requests['arrival_s'].min()",
        "requests['end_s'].max()",
    ),
    # --- timing ---
    Named(
        "compute slows all of measured matrices",
        "framework.timing.profile",
        "_slower",
        "curve.rising_faster(COMPUTE_TOKENS, compute)",
        "curve.times(compute)",
    ),
    Named(
        "all of a link is reached",
        "framework.timing.link_model",
        "with_link_model",
        "gpu.link_bytes_s * gpu.link_efficiency",
        "gpu.link_bytes_s",
    ),
    Named(
        "all of a link is reached, of a roofline",
        "framework.timing.roofline",
        "Roofline.row",
        "gpu.link_bytes_s * gpu.link_efficiency",
        "gpu.link_bytes_s",
    ),
    Named(
        "contexts fall short of the longest by nothing",
        "framework.timing.table",
        "uneven_s",
        "decodes * longest - context",
        "decodes * longest",
    ),
    Named(
        "experts are as popular as one another",
        "framework.timing.expert_parallel",
        "popularity",
        "-skew",
        "0 * skew",
    ),
    Named(
        "stages read their weights once for all micro-batches",
        "framework.timing.flops",
        "_weight_bytes",
        "parallelism.dp * parallelism.pp",
        "parallelism.dp",
    ),
    Named(
        "a window has a token less",
        "framework.timing.flops",
        "_kv_bytes",
        "model.window + 1",
        "model.window",
    ),
)
