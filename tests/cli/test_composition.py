"""Configurations that are composed once are those that Hydra composes, and follow their files."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import OmegaConf

from framework.cli.composition import Loader, composing
from tests.conftest import ROOT
from tests.helpers.composing import hydra_alone

WORDS = (["policy=ares"], ["policy=ares", "seed=3", "hydra.run.dir=there"], ["policy=chunked", "hydra.mode=RUN"])


def test_what_is_composed_is_what_hydra_composes() -> None:
    def composed(words: list[str]) -> str:
        return OmegaConf.to_yaml(compose("config", overrides=words, return_hydra_config=True))

    with hydra_alone():
        expected = [composed(words) for words in WORDS]
    for _ in range(2):  # composed, and remembered
        with composing(ROOT / "conf"):
            assert [composed(words) for words in WORDS] == expected


def test_an_interrupt_waits_for_the_end_of_a_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    apply, ended = Loader._apply, []

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        apply(*arguments)
        ended.append(arguments[-1])

    monkeypatch.setattr(Loader, "_apply", interrupted)
    with composing(ROOT / "conf"), pytest.raises(KeyboardInterrupt):
        compose("config", overrides=["policy=chunked"])
    assert ended[0].policy["_target_"]
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_runs_of_a_sweep_decide_what_is_below_a_swept_group() -> None:
    words = ["engine/prefix_stores=hicache,pool", "engine.prefix_stores.tiers.host.capacity_bytes=1e10", "seed=1,2"]
    with composing(ROOT / "conf"):
        loader = GlobalHydra.instance().config_loader()
        config = loader.load_configuration("config", words, RunMode.MULTIRUN)
        assert list(config.hydra.overrides.task) == words
        with pytest.raises(ConfigCompositionException, match="'sed'"):
            loader.load_configuration("config", [*words, "sed=1"], RunMode.MULTIRUN)


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for value in (1, 22, 333):
        file.write_text(f"value: {value}\n")
        with composing(tmp_path):
            assert compose("config").value == value
