"""A mistyped word is answered with the one that was most likely meant."""

from __future__ import annotations

import pytest
from hydra import compose
from hydra.errors import ConfigCompositionException

from framework.cli.explain import explain
from framework.cli.suggest import instead_of, nearest
from framework.errors import InputError
from tests.helpers.composing import composing

CONFIG = {"engine": {"token_budget": 1, "batching": "x"}, "slo": {"ttft_s": 1}, "seed": 0, "hydra": {"sead": 1}}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("engine.token_buget", "did you mean engine.token_budget?"),
        ("sead", "did you mean seed?"),
        ("ttft_s", "did you mean slo.ttft_s?"),
        ("engine.quite_another", "engine has token_budget, batching"),
        ("quite_another", "--cfg job shows them all"),
        ("nowhere.at_all", "--cfg job shows them all"),
    ],
)
def test_what_there_is_instead(key: str, said: str) -> None:
    assert instead_of(key, CONFIG, {}) == f"; {said}"


def test_of_many_settings_the_first_are_listed() -> None:
    listed = instead_of("group.unlike", {"group": {f"setting{number}": 0 for number in range(20)}}, {})
    assert listed.endswith("setting11, ...")


def test_what_was_chosen_is_named_with_its_settings() -> None:
    config = {"cluster": {"instances": 5, "spare": 0}, "policy": {"_target_": "a.B"}}
    chosen = {"cluster": "mixed", "policy": "chunked"}
    assert instead_of("cluster.nothing", config, chosen) == "; cluster=mixed has instances, spare"
    assert instead_of("cluster.prefill", config, chosen) == "; cluster=deepseek or cluster=disaggregated has it"
    assert instead_of("policy.foo", config, chosen) == "; policy=chunked has no settings"


def test_a_class_of_a_file_has_the_settings_of_its_class() -> None:
    part = {"_target_": "framework.cli.outside.make", "file": "/x.py", "name": "X", "source": "1", "patience_s": 2.0}
    assert instead_of("policy.foo", {"policy": part}, {"policy": "x.py:X"}) == "; policy=x.py:X has patience_s"


def test_a_beginning_stands_for_what_begins_so() -> None:
    assert nearest("azur", ["azure_code", "azure_conv", "mix"]) == "; did you mean azure_code or azure_conv?"
    assert nearest("H100", ["v100", "h100"]) == "; did you mean h100?"
    assert nearest("a", ["a100", "b200"]) == ""


def test_what_is_like_nothing_has_no_suggestion() -> None:
    assert nearest("chunkd", ["chunked", "ares"]) == "; did you mean chunked?"
    assert nearest("something", ["chunked", "ares"]) == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["policy=distserve", "cluster.count=3"],
            "cluster.count: there is no such setting; cluster=disaggregated has instances",
        ),
        (
            ["policy=chunked", "cluster.prefill=2"],
            "there is no such setting; cluster=deepseek or cluster=disaggregated has it",
        ),
        (["policy=ares", "server.foo=1"], "server.foo: there is no such setting; server=vllm_v1 has name"),
        (["engine.token_buget=3"], "did you mean engine.token_budget?"),
        (["model={x:1}"], "model takes a name, one of bloom_176b, "),
        (["predictr=oracle"], "predictr: there is no such setting; did you mean predictor?"),
        (["policy=chunkd"], "policy=chunkd: there is no policy of that name; did you mean chunked? choose one of "),
        (["policy=quite_another"], "policy=quite_another: there is no policy of that name; choose one of andes"),
        (["engine/speculation=drat"], "did you mean draft?"),
    ],
)
def test_a_mistake_on_the_command_line(arguments: list[str], said: str) -> None:
    with composing(), pytest.raises((InputError, ConfigCompositionException)) as refused:
        compose("config", overrides=arguments)
    line = explain(refused.value)
    assert line is not None
    assert said in line


def test_what_can_be_changed_is() -> None:
    arguments = ["+extra.deep=1", "extra.deep=2", "slo.ttft_s=3", "trace.limit=5", "policy={routing: round_robin}"]
    with composing():
        config = compose("config", overrides=["policy=chunked", *arguments])
    assert (config.extra.deep, config.slo.ttft_s, config.policy.routing) == (2, 3, "round_robin")
