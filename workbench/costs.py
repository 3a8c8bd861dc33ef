"""The cost model of an engine step: what it is, how it is fitted to measured steps, and how far it is off.

    step = t0 + a x prefill tokens + b x decoding sequences + c x context tokens + d x seconds of audio encoded
         + e x prefill pairs

Context tokens are the KV that a step reads. Prefill pairs are the query-key pairs that the attention of its prefills
computes: without them a chunk costs an old session all but as much as a young one, which measured steps deny. Each
coefficient is a cost, so none is negative. A simulated engine takes its durations from this model.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np

from workbench._files import to_json, writing
from workbench._fit import fit_relative, intervals, told_apart
from workbench._machine import Fingerprint, MachineFloor
from workbench._records import RecordError, read
from workbench.profiles import Profile, load_profile

COEFFICIENTS = ("t0_s", "prefill_s", "decode_s", "context_s", "encoder_s", "pair_s")
COST_OF = {
    "t0_s": "a step itself",
    "prefill_s": "a prefill token",
    "decode_s": "a decoding sequence",
    "context_s": "a context token",
    "encoder_s": "a second of audio encoded",
    "pair_s": "a query-key pair of a prefill",
}
CALIBRATIONS = Path(__file__).resolve().parents[1] / "reports" / "calibration"
LARGEST_S = 60.0
LEAST_STEPS = 30
# A coefficient counts as told when its column keeps this part of its length beside the best mixture of the others.
_TOLD = 0.02


class CostError(ValueError):
    """Costs that cannot be fitted, read or used; one line that names the value and says what to do."""


class Floor(Protocol):
    """The least time of a step, such as a roofline's."""

    def step_s(
        self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float, prefill_pairs: int
    ) -> float: ...


@dataclass(frozen=True)
class CostModel:
    """Seconds of an engine step: t0_s per step, prefill_s per prefill token, decode_s per decoding sequence, context_s
    per token of the scheduled sequences' context, encoder_s per second of audio encoded, pair_s per query-key pair of
    the prefilling sequences.

    ``floor``: what no step can beat; None for none. ``source``: in one line, where the figures are from.
    CostError for a coefficient that is negative, not finite or above a minute.
    """

    t0_s: float
    prefill_s: float
    decode_s: float
    context_s: float
    encoder_s: float = 0.0
    pair_s: float = 0.0
    floor: Floor | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for name in COEFFICIENTS:
            value = getattr(self, name)
            # Compared so that NaN is refused.
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST_S:
                raise CostError(f"{name} must be 0 to {LARGEST_S:g} s, not {value!r}: calibrate again")

    def step_s(
        self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float = 0.0, prefill_pairs: int = 0
    ) -> float:
        """Seconds of a step with this load: the model's, but never under the floor. 0 for a step without tokens."""
        if not (prefill_tokens or decoding):
            return 0.0
        seconds = (
            self.t0_s
            + self.prefill_s * prefill_tokens
            + self.decode_s * decoding
            + self.context_s * context_tokens
            + self.encoder_s * encoder_s
            + self.pair_s * prefill_pairs
        )
        if self.floor is None:
            return seconds
        return max(seconds, self.floor.step_s(prefill_tokens, decoding, context_tokens, encoder_s, prefill_pairs))


@dataclass(frozen=True)
class Step:
    """One measured step: its load, counted as the plugin's ``step_load`` counts it, and how long it took."""

    prefill_tokens: int
    decoding: int
    context_tokens: int
    prefill_pairs: int
    seconds: float
    encoder_s: float = 0.0

    @property
    def load(self) -> tuple[int, int, int, float, int]:
        """The arguments of ``step_s``."""
        return self.prefill_tokens, self.decoding, self.context_tokens, self.encoder_s, self.prefill_pairs


@dataclass(frozen=True)
class FitError:
    """How far a model is off on ``steps`` steps: the median and the 90th percentile of |model / measured - 1|.

    ``intervals``: of each coefficient that was fitted, the 95 % interval in seconds over resampled steps.
    """

    steps: int
    median: float
    p90: float
    intervals: dict[str, tuple[float, float]]

    @property
    def sigma(self) -> float:
        """The spread of step times that the model leaves, as the sigma of a normal with this median error.

        Half of a normal lies within 0.6745 sigma (its upper quartile); far-off steps count little that way.
        """
        return self.median / 0.6745


@dataclass(frozen=True)
class Group:
    """Some steps, and how far a model is off on them. seconds: the median step. bias: the median of model / measured
    - 1, signed; median and p90: of its size."""

    name: str
    steps: int
    seconds: float
    bias: float
    median: float
    p90: float


def fit(samples: Sequence[Step], source: str = "", floor: Floor | None = None) -> tuple[CostModel, FitError]:
    """The model nearest to ``samples``, without negative coefficients, and its error on them.

    The error that counts is relative: a frame is a long step and some short ones, and all are waited for. Steps far
    off the others' error weigh less (Huber's weights), since what else runs on a machine lengthens some at random.
    CostError for a sample that is no step, too few samples, or samples that cannot tell a coefficient.
    """
    loads, seconds = _arrays(samples)
    # encoder_s alone may be absent from an engine; without a load its cost is 0, not unknown.
    used = [k for k, name in enumerate(COEFFICIENTS) if name != "encoder_s" or loads[:, k].any()]
    names = [COEFFICIENTS[k] for k in used]
    loads = loads[:, used]
    _check_design(loads, seconds, names)
    values = dict(zip(names, fit_relative(loads, seconds).tolist(), strict=True))
    model = CostModel(**values, floor=floor, source=source)
    ranges = dict(zip(names, map(tuple, intervals(loads, seconds).T.tolist()), strict=True))
    error = group(model, "all", samples)
    return model, FitError(error.steps, error.median, error.p90, ranges)


def relative_errors(model: CostModel, samples: Sequence[Step]) -> np.ndarray:
    """model / measured - 1 of each step, shape (len(samples),)."""
    return np.array([model.step_s(*step.load) / step.seconds - 1 for step in samples])


def group(model: CostModel, name: str, samples: Sequence[Step]) -> Group:
    """How far ``model`` is off on ``samples``, of which there is at least one."""
    off = relative_errors(model, samples)
    seconds = float(np.median([step.seconds for step in samples]))
    median, p90 = np.quantile(np.abs(off), (0.5, 0.9)).tolist()
    return Group(name, len(samples), seconds, float(np.median(off)), median, p90)


def _arrays(samples: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Loads with a leading 1, shape (steps, 6), and seconds, shape (steps,)."""
    if len(samples) < LEAST_STEPS:
        raise CostError(f"{len(samples)} steps are too few to fit costs to: measure {LEAST_STEPS} or more")
    for k, step in enumerate(samples):
        for name in (f.name for f in fields(Step)):
            value = getattr(step, name)
            if not 0 <= value < math.inf or (name == "seconds" and value == 0):
                raise CostError(f"step {k}: {name} must be finite and not negative, not {value}: measure again")
        if not (step.prefill_tokens or step.decoding):
            raise CostError(f"step {k} has no tokens: leave empty steps out")
    loads = np.array([(1, *step.load) for step in samples], float)
    return loads, np.array([step.seconds for step in samples])


def _check_design(loads: np.ndarray, seconds: np.ndarray, names: list[str]) -> None:
    """Refuse samples in which a coefficient has no load, or one that is all but a mixture of the others'."""
    for name, column in zip(names, loads.T, strict=True):
        if not column.any():
            raise CostError(f"no step tells {name}, the cost of {COST_OF[name]}: measure steps that have some")
    parts = told_apart(loads / seconds[:, None])
    if tangled := [name for name, part in zip(names, parts, strict=True) if part < _TOLD]:
        raise CostError(f"the steps cannot tell {', '.join(tangled)} apart: vary the load of each by itself")


# -- what a calibration keeps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """Costs measured on one machine with one profile.

    error: of the fit, on the steps it was fitted to. held_out: of a fit to half of the batches, on the other half.
    groups: the error by kind of step. steps: those fitted to, of all the share quiet_share: in the others other work
    ran on the engine's cores. threads: of the engine. front_end_s: seconds of front-end work per second of audio,
    outside the engine. delivery_s: what a frame of a lone session takes beside its engine steps. made_at: UTC, ISO.
    """

    profile: str
    made_at: str
    machine: Fingerprint
    threads: int
    costs: CostModel
    error: FitError
    held_out: Group
    groups: tuple[Group, ...]
    steps: int
    quiet_share: float
    front_end_s: float
    delivery_s: float

    def __post_init__(self) -> None:
        for name, most in (("quiet_share", 1.0), ("front_end_s", LARGEST_S), ("delivery_s", LARGEST_S)):
            if not 0 <= getattr(self, name) <= most:
                raise CostError(f"{name} must be 0 to {most:g}, not {getattr(self, name)}: calibrate again")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write JSON, all or nothing. Raises OutputError."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            part.write_text(f"{to_json(self.to_dict())}\n", encoding="utf-8")
            part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what ``save`` wrote. CostError names the file and what is missing, absurd or of another kind."""
        try:
            return read(cls, json.loads(path.read_text(encoding="utf-8")), "it", {"floor": MachineFloor | None})
        except OSError as error:
            raise CostError(f"cannot read calibration {path}: {error.strerror}") from None
        except CostError as error:
            raise CostError(f"calibration {path}: {error}") from None
        except RecordError as error:
            raise CostError(f"calibration {path}: {error}: calibrate again") from None
        except ValueError as error:  # no JSON, or no UTF-8
            raise CostError(f"calibration {path} is no JSON: {error}") from None


def calibration_path(profile: str) -> Path:
    """Where `workbench calibrate` keeps the calibration of the profile called ``profile``."""
    return CALIBRATIONS / f"{quote(profile, safe=' :@')}.json"


def load_calibration(profile: Profile | str, path: Path | None = None, any_machine: bool = False) -> Calibration:
    """The calibration of a profile, from ``path`` or where `workbench calibrate` keeps it.

    Raises CostError when there is none, and when it was measured on another machine or with another model, dtype or
    block size; with ``any_machine`` a warning says so instead.
    """
    profile = load_profile(profile) if isinstance(profile, str) else profile
    path, remedy = path or calibration_path(profile.name), f"run `workbench calibrate --profile {profile.name}`"
    if not path.exists():
        raise CostError(f"no calibration of {profile.name} in {path.parent}: {remedy}")
    calibration = Calibration.load(path)
    if differences := calibration.machine.differences(Fingerprint.here(profile)):
        what = f"calibration {path} is of another machine: {'; '.join(differences)}"
        if not any_machine:
            raise CostError(f"{what}: {remedy}, or load it with any_machine=True")
        warnings.warn(what, stacklevel=2)
    return calibration
