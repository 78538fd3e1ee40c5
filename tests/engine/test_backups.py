"""KV that is restored from backups after a crash, worked out by hand in both engines: a step lasts 1 s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from framework.codes import CALLED_OFF, LOST, RECOMPUTED, RESTORED
from framework.engine.kv.prefix_tiers import PrefixStores
from framework.errors import InputError, PolicyError
from framework.load import Open, Patience
from framework.metrics.slo import Slo
from framework.metrics.summary import summarize
from framework.policy import Action, Cancel, Policy
from framework.policy.view import Cluster, Request
from framework.result import Result
from framework.system.faults import Crash, FaultSchedule, Recovery
from tests.engine.test_faults import Placed, play, trace
from tests.helpers.recovery import token_times
from tests.helpers.scenarios import MODEL

ENGINES = pytest.mark.parametrize("engine", ["compiled", "reference"])
READ_BYTES_S = MODEL.kv_bytes_per_token / 0.75  # a token takes 0.75 s
BOTH = trace((0, 2, 6), (0, 2, 6))


def restored(
    engine: str, *crashes: Crash, policy: Policy | None = None, backup_tokens: int = 2, **options: Any
) -> Result:
    """Both requests on two instances, one each at first."""
    faults = FaultSchedule(
        crashes=crashes, recovery="restore", backup_tokens=backup_tokens, restore_bytes_s=READ_BYTES_S
    )
    return play(engine, BOTH, policy or Placed(), (), faults=faults, **options)


@ENGINES
def test_whole_blocks_are_read_back_and_the_rest_is_computed(engine: str) -> None:
    """Request 0 has the KV of 3 of its 4 tokens when instance 0 crashes at 2.5 s, 2 of them in a whole block. Instance
    1 computes the other 2 from 3 s on. Reading takes 1.5 s, longer than the step.
    """
    result = restored(engine, Crash(2.5, 0, 3.0))
    assert token_times(result) == [[1, 2, 4.5, 5.5, 6.5, 7.5], [1, 2, 3, 5.5, 6.5, 7.5]]
    assert result.instances["prefill_tokens"].tolist() == [2, 4]
    assert result.instances["restored_tokens"].tolist() == [0, 2]
    assert result.drops.tolist() == [(0, 0, 3, RESTORED)]
    found = summarize(result, Slo())
    names = ("dropped", "lost_tokens", "dropped_recomputed", "dropped_restored", "dropped_failed", "restored_tokens")
    assert [found[name] for name in names] == [1, 3, 0, 1, 0, 2]


@ENGINES
def test_a_block_that_is_not_whole_is_computed_again(engine: str) -> None:
    result = restored(engine, Crash(2.5, 0, 3.0), backup_tokens=4)
    assert result.drops.tolist() == [(0, 0, 3, RECOMPUTED)]
    assert token_times(result)[0] == [1, 2, 4, 5, 6, 7]
    assert result.instances["restored_tokens"].tolist() == [0, 0]


@ENGINES
def test_without_layer_wise_loading_a_step_waits_for_what_is_read(engine: str) -> None:
    """All 3 tokens with KV are read, in 2.25 s, before the step of 1 s."""
    result = restored(engine, Crash(2.5, 0, 3.0), backup_tokens=1, prefix_stores=PrefixStores(layer_wise=False))
    assert token_times(result)[0] == [1, 2, 6.25, 7.25, 8.25, 9.25]
    assert result.instances["prefill_tokens"].tolist() == [2, 3]


@ENGINES
def test_one_that_waits_to_be_restored_keeps_its_backup_over_another_crash(engine: str) -> None:
    """Request 0 waits for the end of a step of instance 1 when that crashes at 2.75 s. Instance 0, back at 3 s, reads 2
    tokens of each request, in 3 s.
    """
    result = restored(engine, Crash(2.5, 0, 0.5), Crash(2.75, 1, 99.0))
    assert result.drops.tolist() == [(0, 0, 3, RESTORED), (1, 0, 0, RESTORED), (1, 1, 3, RESTORED)]
    assert [times[2:4] for times in token_times(result)] == [[6, 7], [6, 7]]
    assert result.instances["restored_tokens"].tolist() == [4, 0]


@ENGINES
def test_a_backup_is_read_once(engine: str) -> None:
    """What request 0 has is read at 3 s, and instance 1 crashes at 3.5 s: the next backup has those 2 tokens."""
    result = restored(engine, Crash(2.5, 0, 0.5), Crash(3.5, 1, 99.0))
    assert [drop[:3] for drop in result.drops.tolist()] == [(0, 0, 3), (1, 0, 2), (1, 1, 4)]
    assert result.instances["restored_tokens"].tolist() == [6, 2]


@ENGINES
def test_one_that_is_sent_again_has_no_backup(engine: str) -> None:
    """Half of the prompt has been computed when the instance crashes at 1.5 s. The client gives up at 2.5 s, and sends
    the request again at 4.5 s, to the instance that is back: two steps compute the whole prompt.
    """
    faults = FaultSchedule(
        crashes=[Crash(1.5, 0, 2.0)], recovery="restore", backup_tokens=1, restore_bytes_s=READ_BYTES_S
    )
    load = Open(patience=Patience(2.5, retries=1, retry_backoff_s=2.0))
    one = trace((0, 4, 2))
    result = play(engine, one, Placed(), (), "mixed", batching="unified", load=load, faults=faults, token_budget=2)
    assert result.drops.tolist() == [(0, 0, 2, RESTORED)]
    assert token_times(result) == [[6.5, 7.5]]
    assert result.instances["restored_tokens"].tolist() == [0]


class Chooses(Placed):
    """Answers by the request, and notes what it sees."""

    def __init__(self, answers: Sequence[Any], script: Mapping[float, Sequence[Action]] | None = None) -> None:
        super().__init__(script)
        self.answers = answers
        self.asked: list[tuple[int, float, int, list[int]]] = []

    def on_failure(self, request: Request, cluster: Cluster) -> Any:
        self.asked.append((request.id, cluster.now_s, request.generated, cluster.prefill.ids.tolist()))
        return self.answers[request.id]


class SecondThoughts(Placed):
    """Restores a request that a crash drops for the first time, and recomputes it after the next."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: set[int] = set()

    def on_failure(self, request: Request, cluster: Cluster) -> Recovery:
        again = request.id in self.dropped
        self.dropped.add(request.id)
        return "recompute" if again else "restore"


@ENGINES
def test_one_that_is_to_be_recomputed_has_no_backup_of_before(engine: str) -> None:
    """As above, but request 0, which waits at the second crash, is then to be computed from its first token: instance 0
    reads 2 tokens of request 1 alone, in 1.5 s.
    """
    result = restored(engine, Crash(2.5, 0, 0.5), Crash(2.75, 1, 99.0), policy=SecondThoughts())
    assert result.drops.tolist() == [(0, 0, 3, RESTORED), (1, 0, 0, RECOMPUTED), (1, 1, 3, RESTORED)]
    assert [times[2:4] for times in token_times(result)] == [[4.5, 5.5], [4.5, 5.5]]
    assert result.instances["restored_tokens"].tolist() == [2, 0]


def chosen(engine: str, policy: Policy, recovery: Recovery = "recompute") -> Result:
    """Five equal requests on an instance that crashes at 1.5 s and is back at 4 s; the last two have come at 1.25 s."""
    faults = FaultSchedule(
        crashes=[Crash(1.5, 0, 2.5)], recovery=recovery, backup_tokens=1, restore_bytes_s=READ_BYTES_S
    )
    rows = trace(*[(0, 2, 3)] * 3, *[(1.25, 2, 3)] * 2)
    return play(engine, rows, policy, (), "mixed", faults=faults)


@ENGINES
def test_a_policy_says_what_becomes_of_each_request(engine: str) -> None:
    """Request 0 fails at the crash, before an instance is back. 1 reads 2 tokens and computes one; 2 computes 3. 3 and
    4 waited: 3 has no backup, 4 fails as the setting says.
    """
    policy = Chooses(["fail", "restore", "recompute", "restore", None])
    result = chosen(engine, policy, "fail")
    assert policy.asked == [(r, 1.5, int(r < 3), []) for r in range(5)]
    assert result.drops["recovery"].tolist() == [LOST, RESTORED, RECOMPUTED, RECOMPUTED, LOST]
    assert [result.reasons[k] for k in result.requests["reason"]] == ["crash", "", "", "", "crash"]
    assert result.requests["end_s"][[0, 4]].tolist() == [1.5, 1.5]
    assert token_times(result)[1:4] == [[1, 5.5, 6.5], [1, 5.5, 6.5], [5.5, 6.5, 7.5]]
    assert result.instances["prefill_tokens"].tolist() == [6 + 1 + 3 + 2]
    assert [r for r, now_s, _ in policy.routed if now_s == 4] == [1, 2, 3]


@ENGINES
def test_none_leaves_it_to_the_setting(engine: str) -> None:
    result = chosen(engine, Chooses([None] * 5), "restore")
    assert result.drops["recovery"].tolist() == [RESTORED] * 3 + [RECOMPUTED] * 2
    assert result.instances["restored_tokens"].tolist() == [6]


@ENGINES
def test_nobody_is_asked_about_a_request_that_is_cancelled(engine: str) -> None:
    """The policy cancels request 1 in the midst of the step that the crash ends."""
    policy = Chooses(["recompute"] * 5, {1.25: [Cancel(1, "enough")]})
    result = chosen(engine, policy)
    assert [r for r, *_ in policy.asked] == [0, 2, 3, 4]
    assert result.drops["recovery"].tolist() == [RECOMPUTED, CALLED_OFF, RECOMPUTED, RECOMPUTED, RECOMPUTED]


@ENGINES
@pytest.mark.parametrize("answer", ["again", 1, True])
def test_other_answers_are_refused(engine: str, answer: object) -> None:
    with pytest.raises(
        PolicyError, match=r"on_failure returned .* for request 0; return one of 'recompute', 'restore'"
    ):
        chosen(engine, Chooses([answer] * 5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backup_tokens": 0}, "engine.faults.backup_tokens must be"),
        ({"restore_bytes_s": 0.0}, "engine.faults.restore_bytes_s must be"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FaultSchedule(recovery="restore", **settings)
