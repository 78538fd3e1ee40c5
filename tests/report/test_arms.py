"""In what else than the policy arms of a comparison differ, in one line."""

from __future__ import annotations

from typing import Any

from framework.report.arms import Arm, unlike

MIXED = {"cluster._target_": "framework.system.cluster.mixed", "cluster.instances": 5, "cluster.tp": 1}
_POOLS = {"cluster.prefill": 3, "cluster.decode": 2, "cluster.tp": 1, "cluster.decode_tp": 2}
APART = {"cluster._target_": "framework.system.cluster.disaggregated"} | _POOLS
_POLICY = {"policy._target_": "policies.chunked.Chunked", "policy.routing": "least_queued", "predictor": None}
_ENGINE = {"engine.prefix_cache": True, "engine.transfers": "pulled", "engine.token_budget": 2048}
_REST = {"server.name": "vllm_v1", "timing.server.name": "vllm_v1", "trace.rate": 4.0, "seed": 0}
BASE: dict[str, Any] = _POLICY | _ENGINE | _REST


def arm(label: str, group: object = (), given: tuple[str, ...] = (), **changes: Any) -> Arm:
    """BASE on five instances; `changes` with __ for dots."""
    settings = BASE | MIXED | {name.replace("__", "."): value for name, value in changes.items()}
    return Arm(label, settings, group, given)


def test_like_arms_differ_in_nothing() -> None:
    assert (
        unlike([arm("one"), arm("other", policy___target_="policies.orca.Orca", policy__order="fcfs", seed=3)]) is None
    )
    assert unlike([arm("alone")]) is None


def test_the_value_of_most_comes_first_and_the_others_name_their_arms() -> None:
    arms = [arm("a", server__name="none", timing__server__name="none"), arm("b"), arm("c")]
    assert unlike(arms) == "Besides the policy, runs differ in server (vllm_v1; none: a)."


def test_what_matters_most_comes_first() -> None:
    other = arm("b", engine__token_budget=512, policy__routing="round_robin", engine__prefix_cache=False)
    assert unlike([arm("a"), other]) == (
        "Besides the policy, runs differ in router (least_queued; round_robin: b), prefix cache (on; off: b), "
        "engine.token_budget (2048; 512: b)."
    )


def test_a_policy_whose_source_states_its_router_is_no_difference() -> None:
    own = arm("b", policy__routing=None)
    assert unlike([arm("a"), own]) is None
    line = unlike([arm("a"), own, arm("c", policy__routing="round_robin")])
    assert line == "Besides the policy, runs differ in router (least_queued; its own: b; round_robin: c)."


def test_clusters_are_told_by_their_pools() -> None:
    apart = Arm("b", BASE | APART)
    assert unlike([arm("a"), apart]) == (
        "Besides the policy, runs differ in cluster (5 mixed; 3 prefill + 2 decode tp=2: b)."
    )


def test_a_split_that_the_load_decides_is_told_with_its_total() -> None:
    apart = Arm("b", BASE | APART | {"cluster.prefill": "auto", "cluster.decode": None, "cluster.instances": None})
    assert unlike([arm("a"), apart]) == (
        "Besides the policy, runs differ in cluster (5 mixed; 5 prefill and decode, split by load: b)."
    )


def test_predictors_are_told_by_name() -> None:
    lognormal: dict[str, Any] = {
        "predictor": None,
        "predictor___target_": "predictors.lognormal.LogNormal",
        "predictor__persistence": 0.5,
    }
    line = unlike([arm("a"), arm("b", **lognormal)])
    assert line == "Besides the policy, runs differ in predictor (none; lognormal: b)."
    other = arm("c", **(lognormal | {"predictor__persistence": 0.7}))
    assert unlike([arm("b", **lognormal), other]) == "Besides the policy, runs differ in predictor (c)."


def test_groups_without_a_name_are_told_by_who_has_them_otherwise() -> None:
    line = unlike([arm("a"), arm("b", trace__rate=8.0, model__name="llama3_70b"), arm("c", model__name="llama3_8b")])
    assert line == ("Besides the policy, runs differ in trace (b), model (none; llama3_70b: b; llama3_8b: c).")


def test_what_the_user_gave_is_not_named() -> None:
    arms = [
        arm("a", given=("cluster", "engine")),
        Arm("b", BASE | APART | {"engine.token_budget": 1}, (), ("cluster", "engine")),
    ]
    assert unlike(arms) is None


def test_arms_of_one_group_alone_are_compared() -> None:
    arms = [arm(label, trace__rate=rate, group=rate) for rate in (1.0, 2.0) for label in ("a", "b")]
    assert unlike(arms) is None
    arms.append(arm("c", trace__rate=2.0, group=2.0, server__name="none"))
    assert unlike(arms) == "Besides the policy, runs differ in server (vllm_v1; none: c)."


def test_a_line_names_no_more_than_a_reader_takes_in() -> None:
    many: dict[str, Any] = {f"engine__option{number}": 1 for number in range(20)}
    none: dict[str, Any] = dict.fromkeys(many, 0)
    line = unlike([arm("a", **none), *(arm(f"arm {number}", **many) for number in range(9))])
    assert line is not None
    assert line.endswith("engine.option11 (1; 0: a), 8 more.")
    values = unlike([arm(f"arm {number}", engine__token_budget=number) for number in range(6)])
    assert values == ("Besides the policy, runs differ in engine.token_budget (0; 1: arm 1; 2: arm 2; 3: arm 3; ...).")
    labels = unlike(
        [*(arm(f"arm {number}", server__name="none") for number in range(6)), *(arm(f"x{n}") for n in range(5))]
    )
    assert labels == "Besides the policy, runs differ in server (none; vllm_v1: x0, x1, x2 and 2 more)."
