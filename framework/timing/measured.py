"""Step times from measured kernel times: shipped profiles, or a user's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from framework.checks import Positive, check_fields
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration, Fit, find_calibration
from framework.timing.expert_parallel import ExpertLoad, expert_load, with_expert_load
from framework.timing.fit_domain import Place
from framework.timing.joint_attention import Joint, joint_kernel
from framework.timing.link_model import applies, with_link_model
from framework.timing.profile import NODE_GPUS, Setup, StepParts
from framework.timing.roofline import Roofline, spread
from framework.timing.server import Server
from framework.timing.shipped import profile_files
from framework.timing.shipped.profile_files import Origin
from framework.timing.shipped.scale import Gains, same_speed, scaled
from framework.timing.step_row import StepRow, Timing

_Asked = tuple[Model, Gpu, Parallelism]
Missing = Literal["refuse", "roofline"]
OutsideFit = Literal["kernels", "keep"]
_ESTIMATED = " by roofline, as no kernel was measured on it"  # follows the name of a GPU; a factor follows


@dataclass(frozen=True)
class Entry:
    """The parts of a step on one kind of instance with measured kernels, and its fit.

    `gpu` is the one of the parts, `joint` says how a kernel for chunks and decodes runs, and `linked` whether
    all-reduces use a link model (framework.timing.link_model). `fit` was fitted on the GPU `fitted_on`, which is that
    GPU or the one whose measurement was scaled; it is None if nothing was fitted.
    """

    parts: StepParts
    gpu: str
    origin: Origin
    fit: Fit | None
    fitted_on: str
    joint: Joint
    linked: bool

    @property
    def calibration(self) -> Calibration | None:
        """The fitted terms, None if nothing was fitted."""
        return None if self.fit is None else self.fit.calibration

    def described(self, *, calibrated: bool, place: Place | None = None, left_out: str = "") -> str:
        """The GPU, the backend and its version, and the changes to the measurement, as text.

        `place` is that of the run's load, if known, and `left_out` why a fit does not count there.
        """
        of = f" scaled from {self.parts.scaled_from}" if self.parts.scaled_from else ""
        link = ", all-reduce by a link model" if self.linked else ""
        link += f", by the datasheet {', '.join(self.parts.estimated)}" if self.parts.estimated else ""
        fitted = self._fitted(place, left_out) if calibrated else ""
        return f"{self.gpu}{of}, {self.origin.backend} {self.origin.version}{link}{fitted}"

    def _fitted(self, place: Place | None, left_out: str) -> str:
        if self.fit is None:
            return ""
        if left_out:
            return f", calibration left out: {left_out}, timing.outside_fit=keep counts it"
        domain = self.fit.domain
        to = "" if domain is None else f" to {domain}"
        if domain is not None and place is not None:
            to += f", this run: {place}: {domain.distance(place) or 'all within'}"
        return f", calibrated{to}" if self.fitted_on == self.gpu else f", calibrated as {self.fitted_on} was{to}"


@dataclass
class Measured:
    """Step times of `backend`, a name of framework/timing/profiles/<gpu>: vllm, trtllm, sglang, or a user's own.

    With `calibrated`, terms that were fitted to measured deployments count, if there are any. `profiles` is a directory
    of the user's profiles, which is searched first. A GPU without a profile gets those of its reference GPU
    (`neighbour`), or of the one that it names itself, scaled (timing/shipped/scale.py); so does one whose datasheet was
    changed. `joint_attention` says whether the attention of chunks and of decodes of a step is one kernel, None: as the
    backend runs it on that GPU (framework.timing.joint_attention). With `link_model`, all-reduces follow the GPU's
    link, if it states a latency (framework.timing.link_model). `expert_load` is the load of the GPU with the most
    tokens, relative to the measured routing. `experts` gives it by the experts' popularity and copies, if they are
    spread over more GPUs than a node has, whose times are of even routing. With `two_batches`, a step runs as two
    micro-batches that hide each other's communication (framework.timing.two_batch_overlap). `server` is the software
    that runs the steps. `calibrated_as` names another GPU, whose fitted terms replace this one's. `outside_fit` says
    what happens to fitted terms if the load of a run lies too far outside those of the fit
    (framework.timing.fit_domain): "kernels" leaves them out, so kernels and the terms of the server count, "keep" keeps
    them. `place` is that load's place, None if unknown. `missing` says what happens to a GPU without measurements and
    without a reference GPU: "refuse" raises InputError, "roofline" gives the times of a plain `Roofline`. `source`
    names all rows that one object gave out; each is read only once. Raises InputError for invalid values.
    """

    backend: str = "vllm"
    calibrated: bool = True
    profiles: str | None = None
    neighbour: str | None = None
    expert_load: Positive = 1.0
    two_batches: bool = False
    joint_attention: bool | None = None
    link_model: bool = True
    experts: ExpertLoad | Mapping[str, Any] | None = None
    calibrated_as: str | None = None
    missing: Missing = "refuse"
    outside_fit: OutsideFit = "kernels"
    server: Server = field(default_factory=Server)
    place: Place | None = None
    _given: list[str] = field(default_factory=list, init=False, repr=False)
    _rows: list[tuple[_Asked, StepRow]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("backend", "profiles", "neighbour", "calibrated_as"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name == "backend"):
                raise InputError(f"timing.{name} must be a name, got {value!r}")
        check_fields(self, "timing.")
        self.experts = expert_load(self.experts)

    @property
    def source(self) -> str:
        """The measurements of the rows made so far."""
        served = self.server.name != "none" and not (self._given and all(_ESTIMATED in given for given in self._given))
        server = f"; server {self.server.name}" if served else ""
        return f"measured ({'; '.join(self._given) or self.backend}{server})"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        """The step times of one instance.

        Raises InputError, with the available ones and how to make more, if none were measured.
        """
        asked = (model, gpu, parallelism)
        row = next((row for known, row in self._rows if known == asked), None)
        if row is None:
            if self.estimates(gpu):
                given = f"{gpu.name}{_ESTIMATED}, to a factor of {spread(gpu):g}"
                row = self._roofline.row(*asked)
            else:
                entry = self.entry(*asked)
                left_out = self._left_out(entry.fit, model)
                given = entry.described(calibrated=self.calibrated, place=self.place, left_out=left_out)
                counts = self.calibrated and not left_out
                row = self.under(entry.calibration if counts else None, entry, model, parallelism)
            if given not in self._given:
                self._given.append(given)
            self._rows.append((asked, row))
        return row

    def _left_out(self, fit: Fit | None, model: Model) -> str:
        """Why the fit does not count for the load of the run, as text; empty if it counts."""
        return "" if self.outside_fit == "keep" or fit is None else fit.excludes(self.place, model)

    def is_fitted(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> bool:
        """Whether fitted terms count in `row`; raises InputError as `row` does."""
        fit = self.entry(model, gpu, parallelism).fit
        return self.calibrated and fit is not None and not self._left_out(fit, model)

    def estimates(self, gpu: Gpu) -> bool:
        """Whether `row` uses the datasheet: that was allowed, and there are no measured times."""
        if self.missing == "refuse" or (self.neighbour or gpu.neighbour) is not None:
            return False
        return not profile_files.has_any(self._places, gpu.name)

    @property
    def _roofline(self) -> Roofline:
        return Roofline(joint_attention=self.joint_attention)

    @property
    def _places(self) -> tuple[Path, ...]:
        return profile_files.directories(None if self.profiles is None else Path(self.profiles).expanduser())

    def under(self, calibration: Calibration | None, entry: Entry, model: Model, parallelism: Parallelism) -> StepRow:
        """The times of a whole step on the server, under a calibration; None: by kernels and the server's own terms."""
        added = self.server.fitted(calibration).overheads(model.layers, parallelism)
        row = entry.joint.of(entry.parts.row(calibration or Calibration(), added))
        longest = float(model.max_context)
        if row.attention is None or row.attention.knots[-1] >= longest:
            return row
        return row.mapped(**dict.fromkeys(("attention", "bounded"), lambda curve: curve.continued_to(longest)))

    def entry(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> Entry:
        """What `row` is made from; raises InputError as `row` does."""
        places, setup = self._places, Setup.of(model, parallelism)
        measured, gains = gpu.name, Gains()
        found = profile_files.find(places, model, measured, self.backend, setup)
        if found is None and not profile_files.setups(places, model.name, measured, self.backend):
            measured, gains = self._like(gpu, model, places)
            found = profile_files.find(places, model, measured, self.backend, setup)
        if found is None:
            gpu.peak(model.dtype)  # raises if the GPU does not compute in that type
            if model.heads % parallelism.tp:
                raise InputError(f"tp = {parallelism.tp} does not divide the {model.heads} heads of {model.name}")
            raise InputError(self._missing(places, model, gpu, measured, setup))
        parts = found.parts
        if measured != gpu.name or not same_speed(found.origin.device, gpu):
            parts = scaled(parts, model, found.origin.device, gpu, gains)
        name = self.calibrated_as or gpu.name
        fit = find_calibration(places, name, self.backend, model, self.place if self.outside_fit != "keep" else None)
        linked = self.link_model and applies(parts, gpu)
        if linked:
            parts = with_link_model(parts, model, gpu)
        parts = with_expert_load(parts, self.expert_load * self._load(model, parallelism))
        parts = replace(parts, two_batches=self.two_batches)
        joint = joint_kernel(gpu, model, parallelism, self.backend, joint=self.joint_attention)
        return Entry(parts, gpu.name, found.origin, fit, name, joint, linked)

    def _load(self, model: Model, parallelism: Parallelism) -> float:
        """The load of the GPU with the most tokens, by `experts`."""
        if not isinstance(self.experts, ExpertLoad) or model.experts is None:
            return 1.0
        if parallelism.ep <= NODE_GPUS:
            raise InputError(
                f"timing.experts is for experts on more than {NODE_GPUS} GPUs: times of ep = {parallelism.ep} are of"
                " uneven routing; give timing.expert_load, relative to that, or set timing.experts=null"
            )
        return self.experts.most(model.experts.count, parallelism.ep)

    def _like(self, gpu: Gpu, model: Model, places: tuple[Path, ...]) -> tuple[str, Gains]:
        """The GPU to scale from, itself if none is known, and how much more of its peaks this one reaches.

        Raises InputError for a given name without times, with the names that have some.
        """
        name = self.neighbour or gpu.neighbour
        if name is None:
            return gpu.name, Gains()
        if not profile_files.setups(places, model.name, name, self.backend):
            known = [one for one, backend in profile_files.platforms(places, model.name) if backend == self.backend]
            key = "gpu.neighbour" if self.neighbour is None else "timing.neighbour"
            raise InputError(
                f"{key}={name}: there are no measured times of {model.name} with {self.backend} on it;"
                f" choose one of {', '.join(known) or 'another backend, none has such times'}"
            )
        return name, Gains(gpu.tensor_gain, gpu.bandwidth_gain) if name == gpu.neighbour else Gains()

    def _missing(self, places: tuple[Path, ...], model: Model, gpu: Gpu, measured: str, setup: Setup) -> str:
        asked = f"no measured times for {model.name} on {gpu.name}, {self.backend}, {setup}"
        there = _grouped(profile_files.setups(places, model.name, measured, self.backend))
        if there:
            scaled_from = f" (scaled from {measured})" if measured != gpu.name else ""
            known = f"there are{scaled_from} {there}"
        else:
            platforms: dict[str, list[str]] = {}
            for name, backend in profile_files.platforms(places, model.name):
                platforms.setdefault(name, []).append(backend)
            listed = ", ".join(f"{name} ({' '.join(backends)})" for name, backends in platforms.items())
            known = f"there are profiles of it for {listed}" if listed else "it has no profile at all"
            if listed and gpu.name not in platforms and measured == gpu.name:
                known += ", from one of which timing.neighbour=GPU scales"
        return (
            f"{asked}: {known}; make one with python -m framework.timing.kernels.build model={model.name}"
            f" gpu={measured} backend={self.backend} {_options(setup)}"
            " (needs pip install '.[kernels]' and tables that have it), or"
            " take timing=roofline, which runs anything"
        )


def placed(timing: Timing, place: Place) -> Timing:
    """The step times for a run whose load lies at `place`; those of sources without a fit do not depend on it."""
    return replace(timing, place=place) if isinstance(timing, Measured) and timing.calibrated else timing


def _options(setup: Setup) -> str:
    """A setup as settings of a command line."""
    sizes = {name: getattr(setup.parallelism, name) for name in ("tp", "pp", "ep", "dp")}
    settings = [f"{name}={size}" for name, size in sizes.items() if name == "tp" or size > 1]
    settings += [f"dtype={setup.dtype}"]
    settings += [f"expert_dtype={setup.expert_dtype}"] if setup.expert_dtype != setup.dtype else []
    return " ".join([*settings, f"kv_dtype={setup.kv_dtype}"])


def _grouped(setups: Iterable[Setup]) -> str:
    """Setups by the available parallelisms of the same data types."""
    parallelisms: dict[str, list[str]] = {}
    for setup in setups:
        parallelisms.setdefault(setup.types, []).append(str(setup.parallelism))
    groups: dict[str, list[str]] = {}
    for types, names in parallelisms.items():
        groups.setdefault(" ".join(names), []).append(types)
    return "; ".join(f"{names} ({'; '.join(types)})" for names, types in groups.items())
