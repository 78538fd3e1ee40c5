"""llm-d's endpoint picker: weights decide, a profile comes from a file, and a file that is wrong is one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.errors import InputError
from framework.result import STATES
from policies._endpoint_profiles import SKIPPED, TYPES, read_profiles
from policies.llm_d import LlmD
from tests.helpers import warm
from tests.helpers.by_hand import fleet, play
from tests.helpers.processes import run
from tests.helpers.scenarios import prefixes

ENGINES = pytest.mark.parametrize("implementation", ["compiled", "reference"])
SHARED = list(range(8))
CONFIG = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: single-profile-handler
- type: low-queue-filter
  parameters:
    threshold: 3
- name: cache
  type: prefix-cache-scorer
  parameters:
    hashBlockSize: 64
- type: queue-scorer
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: low-queue-filter
  - pluginRef: cache
    weight: 2.5
  - pluginRef: queue-scorer
  - pluginRef: weighted-random-picker
"""


def profile(**weights: float) -> dict[str, Any]:
    """A configuration with these scorers, by the first words of their types."""
    kinds = {name: f"{name.replace('_', '-')}-scorer" for name in weights}
    return {
        "plugins": [{"type": kind} for kind in kinds.values()],
        "schedulingProfiles": [
            {"name": "default", "plugins": [{"pluginRef": kinds[name], "weight": w} for name, w in weights.items()]}
        ],
    }


@ENGINES
@pytest.mark.parametrize(("queue", "last"), [(1.0, 0), (1.2, 1)])
def test_weights_decide_between_a_cache_and_a_queue(queue: float, last: int, implementation: str) -> None:
    """Instance 0 has 8 of the last prompt's 8 tokens and one request that waits, instance 1 neither: a weight of 1.1
    on the cache against one of 1.0, and of 1.2, on the queue.
    """
    own = [[100 + 10 * k + j for j in range(8)] for k in range(3)]
    rows = [(0.0, 8, 1), (2.0, 8, 9), (2.0, 8, 9), (2.5, 8, 9), (3.0, 8, 1)]
    columns = prefixes([SHARED, own[0], own[1], own[2], SHARED], 1)
    policy = LlmD(profile(queue=queue, prefix_cache=1.1 * 8 / 7))  # the last token is always computed
    settings: dict[str, Any] = {"prefix_cache": True, "max_batch": 1, "implementation": implementation}
    result = play(policy, rows, fleet(mixed=2), columns=columns, **settings)
    assert result.requests["prefill_instance"].tolist()[-1] == last


def written(folder: Path, text: str) -> str:
    path = folder / "profile.yaml"
    path.write_text(text)
    return str(path)


def test_reads_plugins_weights_and_parameters(tmp_path: Path) -> None:
    one = read_profiles(written(tmp_path, CONFIG))["default"]
    assert [type(plugin).__name__ for plugin in one.filters] == ["LowQueueFilter"]
    assert vars(one.filters[0]) == {"threshold": 3}
    assert [(type(scorer).__name__, weight) for scorer, weight in one.scorers] == [
        ("PrefixCacheScorer", 2.5),
        ("QueueScorer", 1.0),
    ]
    assert type(one.picker).__name__ == "WeightedRandomPicker"


def test_without_profiles_all_plugins_are_one_and_the_largest_score_is_taken() -> None:
    one = read_profiles({"plugins": [{"type": "queue-scorer"}, {"type": "session-affinity-filter"}]})["default"]
    assert (len(one.filters), len(one.scorers), type(one.picker).__name__) == (1, 1, "MaxScorePicker")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("type: queue-scorer", "type: queue-score", r"plugins\[3\]: there is no plugin queue-score; there are queue-s"),
        (
            "pluginRef: cache",
            "pluginRef: cash",
            r"schedulingProfiles\[0\]: plugins\[1\]: .* named cash; there are sing",
        ),
        ("kind: EndpointPickerConfig", "kind: Pod", r"kind must be EndpointPickerConfig, got 'Pod'"),
        ("threshold: 3", "thresh: 3", r"low-queue-filter: there is no 'thresh' here; there are threshold"),
        ("threshold: 3", "threshold: low", r"low-queue-filter: threshold must be a whole number"),
        ("weight: 2.5", "weight: -1", r"plugins\[1\]: weight must be a finite number of at least 0, got -1"),
        ("- type: weighted-random-picker", "- type: random-picker\n- type: max-score-picker", r"named weighted-random"),
        ("  - pluginRef: queue-scorer", "  - queue-scorer", r"plugins\[2\]: must be a mapping, got 'queue-scorer'"),
        ("- name: cache", "- name: single-profile-handler", r"a plugin single-profile-handler is there already"),
        ("plugins:\n- type: single", "plugins: [\n- type: single", r"profile.yaml: is no YAML \(.*line 5"),
        ("featureGates", "features", r"there is no 'features' here"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in CONFIG
    with pytest.raises(InputError, match=line) as raised:
        LlmD(written(tmp_path, CONFIG.replace(old, new)))
    assert "\n" not in str(raised.value)


def test_a_line_names_what_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, for a search makes many runs; the default and a file of what decides say nothing."""
    path = written(tmp_path, CONFIG)
    for _ in range(2):
        LlmD(path)
    skipped = "featureGates, single-profile-handler, hashBlockSize of prefix-cache-scorer"
    line = f"note: {path}: skipped, since it decides nothing here: {skipped}; see docs/gateway.md\n"
    assert capsys.readouterr().err == line
    lines = [line for line in CONFIG.splitlines() if "single" not in line and "featureGates" not in line]
    LlmD(written(tmp_path, "\n".join(lines).replace("  parameters:\n    hashBlockSize: 64\n", "")))
    LlmD()
    LlmD({"plugins": [{"type": "queue-scorer", "parameters": None}]})
    assert capsys.readouterr() == ("", "")


def test_other_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        LlmD(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"kind: \xe9")
    with pytest.raises(InputError, match=r"latin.yaml: is not text in UTF-8 \(byte 7\)"):
        LlmD(str(tmp_path / "latin.yaml"))
    picks = [{"type": "max-score-picker"}, {"type": "random-picker"}]
    with pytest.raises(InputError, match="has 2 pickers; leave one"):
        LlmD({"plugins": picks})
    with pytest.raises(InputError, match="active-request-filter: parameters lack one of maxRequests"):
        LlmD({"plugins": [{"type": "active-request-filter"}]})
    two: list[dict[str, Any]] = [{"name": name, "plugins": []} for name in ("a", "b")]
    with pytest.raises(InputError, match=r"the profiles a, b; it needs one alone, or prefill and decode"):
        play(LlmD({"plugins": [], "schedulingProfiles": two}), [(0.0, 1, 1)])
    assert not set(SKIPPED) & set(TYPES)


@ENGINES
def test_a_request_without_an_endpoint_is_rejected(implementation: str) -> None:
    """At most one request may be in flight on the only instance; the third comes when the first has ended."""
    policy = LlmD({"plugins": [{"type": "active-request-filter", "parameters": {"maxRequests": 1}}]})
    rows = [(0.0, 4, 5), (1.5, 4, 5), (2.5, 4, 5), (9.5, 4, 5)]
    result = play(policy, rows, implementation=implementation)
    assert [STATES[k] for k in result.requests["state"]] == ["finished", "finished", "rejected", "finished"]


def test_profiles_of_prefill_and_decode() -> None:
    """Prompts go to the instances that prefill in turn, decodes to the one with the most free KV."""
    config = {
        "plugins": [{"type": "random-picker"}, {"type": "kv-cache-utilization-scorer"}],
        "schedulingProfiles": [
            {"name": "prefill", "plugins": []},
            {"name": "decode", "plugins": [{"pluginRef": "kv-cache-utilization-scorer"}]},
        ],
    }
    rows = [(0.0, 40, 20), (2.5, 4, 20), (4.5, 4, 20), (6.5, 4, 20)]
    result = play(LlmD(config), rows, fleet(prefill=2, decode=2))
    assert result.requests["prefill_instance"].tolist() == [0, 1, 0, 1]
    assert result.requests["decode_instance"].tolist() == [2, 3, 3, 3]


@pytest.mark.parametrize("wrong", [False, True])
def test_through_the_launcher(tmp_path: Path, wrong: bool) -> None:
    path = written(tmp_path, CONFIG.replace("type: queue-scorer", "type: queue-score") if wrong else CONFIG)
    words = ["policy=llm_d", f"policy.profile={path}", "trace=synthetic", "trace.requests=20", "cluster.instances=2"]
    ended = run(tmp_path, *words, "gateway=flow_control", python=str(warm.path() / "python"))
    assert ended.returncode == (2 if wrong else 0), ended.stderr
    if wrong:
        assert ended.stderr.startswith(f"error: {path}: plugins[3]: there is no plugin queue-score; there are queue-s")
        assert ended.stderr.count("\n") == 1
