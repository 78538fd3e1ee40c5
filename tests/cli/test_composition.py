"""Configurations that are composed once are those that Hydra composes, and follow their files."""

from __future__ import annotations

from pathlib import Path

from hydra import compose
from omegaconf import OmegaConf

from framework.cli.composition import composing
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


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for value in (1, 22, 333):
        file.write_text(f"value: {value}\n")
        with composing(tmp_path):
            assert compose("config").value == value
