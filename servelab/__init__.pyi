from experiments.judge.score import judge
from framework.errors import InputError
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation, evaluate
from framework.policy import (
    Action,
    Aggregated,
    Cancel,
    Cluster,
    Decision,
    Disaggregated,
    Migrate,
    Plan,
    Policy,
    Preempt,
    Request,
    Requeue,
    Resume,
    Retain,
    Scale,
    SetDrafts,
    SetMaxBatch,
    SetRole,
    SetTokenBudget,
    Span,
    View,
    decision,
)
from framework.policy.predictor import Predictor
from framework.simulate import simulate
from framework.version import VERSION
from framework.workload import Workload
from servelab.run_many import capacity, sweep
from servelab.run_one import Run, run
from traces.load import load as load_trace

__version__: str

__all__ = [
    "VERSION",
    "Action",
    "Aggregated",
    "Cancel",
    "Cluster",
    "Decision",
    "Disaggregated",
    "Evaluation",
    "InputError",
    "Migrate",
    "Plan",
    "Policy",
    "Predictor",
    "Preempt",
    "Request",
    "Requeue",
    "Resume",
    "Retain",
    "Run",
    "Scale",
    "SetDrafts",
    "SetMaxBatch",
    "SetRole",
    "SetTokenBudget",
    "Slo",
    "Span",
    "View",
    "Workload",
    "capacity",
    "decision",
    "evaluate",
    "judge",
    "load_trace",
    "run",
    "simulate",
    "sweep",
]
