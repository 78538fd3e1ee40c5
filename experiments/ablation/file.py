"""An ablation: the contents of conf/ablation/NAME.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from omegaconf import OmegaConf

from framework.checks import Count, check_fields
from framework.cli.conf import CONF
from framework.errors import InputError


@dataclass(frozen=True)
class Published:
    """A paper's claim about a variant, shown next to the measured change of `metric` against each baseline."""

    metric: str
    variant: str
    claim: str


@dataclass(frozen=True)
class Ablation:
    """The contents of conf/ablation/NAME.yaml.

    `base` and each of `variants` are overrides of conf/config.yaml; `comparisons` names the variants to be compared
    with each baseline, itself a variant. `replicate` is the key that distinguishes replicates 0, 1, ... `metrics`: keys
    of summary.json and their headings. Raises InputError for inconsistent names.
    """

    title: str
    base: Sequence[str]
    variants: Mapping[str, Sequence[str]]
    comparisons: Mapping[str, Sequence[str]]
    metrics: Mapping[str, str]
    replicates: Count = 10
    replicate: str = "seed"
    published: Sequence[Published] = ()
    notes: Sequence[str] = ()
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        compared = [variant for baseline, variants in self.comparisons.items() for variant in (baseline, *variants)]
        for variant in (*compared, *(claim.variant for claim in self.published)):
            if variant not in self.variants:
                raise InputError(f"ablation {self.name}: no variant {variant!r}; there are {', '.join(self.variants)}")
        for claim in self.published:
            if claim.metric not in self.metrics:
                raise InputError(f"ablation {self.name}: published metric {claim.metric!r} is not among its metrics")
        check_fields(self, f"ablation {self.name}: ")


def read_ablation(name: str, folder: Path = CONF / "ablation") -> Ablation:
    """The ablation of that name. Raises InputError for a bad file, and, with a list of the existing ones, for an
    unknown name.
    """
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        raise InputError(f"{name!r}: there is no ablation of that name; choose one of {', '.join(names)}")
    content = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"))
    known = {item.name for item in fields(Ablation)} - {"name"}
    if not isinstance(content, dict) or not set(content) <= known:
        raise InputError(f"{name}.yaml: its keys must be among {', '.join(sorted(known))}")
    try:
        published = tuple(Published(**claim) for claim in content.pop("published", ()))
        return Ablation(**{str(key): value for key, value in content.items()}, published=published, name=name)
    except TypeError as error:  # a key too many or too few
        raise InputError(f"{name}.yaml: {error}") from error
