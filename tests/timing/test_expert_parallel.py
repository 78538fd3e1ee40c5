"""How copies of popular experts even out the load of GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from framework.errors import InputError
from framework.timing.expert_parallel import ExpertLoad, expert_load, pack, popularity, replicate


def test_the_next_copy_goes_to_the_expert_with_most_load_per_copy() -> None:
    # 12 6 3: halves of 12 tie with 6, the first gets it: 4 4 4, 6, 3; then the 6
    assert replicate(np.array([12.0, 6.0, 3.0]), 5).tolist() == [3, 1, 1]
    assert replicate(np.array([12.0, 6.0, 3.0]), 6).tolist() == [3, 2, 1]


def test_the_heaviest_go_first_to_the_least_loaded_gpu_with_room() -> None:
    # 8 | 7, then 4 to the 7; 3 would go to the 8, and has to; 1 and 1 fill up
    assert pack(np.array([8.0, 7.0, 4.0, 3.0]), 2).tolist() == [11.0, 11.0]
    # the one GPU with room left takes what comes, however loaded it is
    assert pack(np.array([9.0, 1.0, 1.0, 1.0]), 2).tolist() == [10.0, 2.0]


def test_popularity() -> None:
    assert popularity(4, 0.0).tolist() == [0.25] * 4
    assert popularity(3, 1.0) == pytest.approx(np.array([6, 3, 2]) / 11)


def test_even_experts_load_gpus_by_their_number() -> None:
    assert ExpertLoad().most(256, 32) == pytest.approx(1.0)
    assert ExpertLoad().most(256, 144) == pytest.approx(2 / (256 / 144))  # 112 GPUs have two, 32 have one
    assert ExpertLoad(redundant=32).most(256, 144) == pytest.approx(2 / (256 / 144))  # 224 slots of whole experts left


def test_copies_mend_what_skew_does() -> None:
    loads = {(skew, extra): ExpertLoad(skew, extra).most(256, 32) for skew in (0.25, 0.5, 1.0) for extra in (0, 32)}
    assert loads[0.25, 0] < loads[0.5, 0] < loads[1.0, 0]
    for skew in (0.25, 0.5, 1.0):
        assert 1.0 <= loads[skew, 32] < 1.05 < loads[skew, 0]
    assert ExpertLoad(1.0, 0, seed=1).most(256, 32) != loads[1.0, 0]


def test_settings() -> None:
    assert expert_load({"skew": 0.5}) == ExpertLoad(0.5)
    assert expert_load(None) is None
    with pytest.raises(InputError, match=r"timing\.experts must be null or settings among skew, redundant, seed"):
        expert_load({"copies": 3})
    with pytest.raises(InputError, match=r"timing\.experts\.skew"):
        ExpertLoad(skew=-1.0)
    with pytest.raises(InputError, match="do not fill ep = 16"):
        ExpertLoad(redundant=4).most(8, 16)
