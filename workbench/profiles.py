"""What to serve and how: a profile is data, and every number of a run comes from one."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path

from workbench._interaction import interaction_profiles
from workbench.bound import KVBound, check_bound, growth_per_frame, plateau_excess

LONGEST_BUDGET_S = 3600.0


class ProfileError(ValueError):
    """A profile that cannot be served; one line that names the field and says what to do."""


@dataclass(frozen=True)
class Profile:
    """One way of serving sessions. Times in seconds, sizes in tokens or blocks.

    name: shown with every figure. model: a name of workbench.weights or a Hugging Face folder.
    executor: "vllm" (the CPU or CUDA build, whichever is installed) or "simulated" (the real scheduler on a virtual
    clock). hardware: the hardware card that a simulated model runs on; without one its steps take as long as the
    calibration of the real profile says: that of this machine, with calibration = "any" whichever is saved, or the one
    in the file that ``calibration`` names.
    frame_budget_s: B, the audio of one frame and its deadline. tokens_owed: reply tokens owed per frame.
    front_end: how audio becomes tokens. sessions: N an experiment opens by default.
    window, sinks, moving_sinks: the bound its bounded arms use. pool_blocks: blocks that can hold tokens.
    max_model_len: the most resident tokens of a session. max_positions: rows of the rotary table, the age in tokens
    at which a bounded session ends. phase_groups: G, the number of instants per budget at which frames fall due.
    wait_cap: the part of B after which a frame returns with what is there. backlog: chunks a session may have
    waiting behind an unanswered one. cores: "all" or a list such as "0-3", bound by the CPU engine.
    trust_remote_code: let Python code that the model's folder brings run.
    max_batched_tokens: tokens of one engine step. seed: of every random choice.

    Sources of variance, all off by default. start_jitter: the part of B within which a session starts off the beat of
    its group. arrivals_per_s: sessions that come later, as a Poisson process; holding_s: how long a session stays on
    average, exponentially distributed, 0 for ever (workbench.workload plays both).
    On a simulated engine also eos_chance: the probability that an owed token ends the reply; step_noise: sigma of a
    log-normal factor of mean 1 on the duration of each step; slowdown: how many times as long as its cost model says
    each step takes, for an engine that does not reach a roofline; shared_prefix: tokens that open every session and are
    the same in all, kept once by prefix caching (unbounded sessions only).
    """

    name: str
    model: str
    sessions: int
    window: int
    pool_blocks: int
    max_model_len: int
    max_positions: int
    sinks: int = 4
    moving_sinks: bool = False
    trust_remote_code: bool = False
    executor: str = "vllm"
    hardware: str = ""
    calibration: str = ""
    frame_budget_s: float = 2.0
    tokens_owed: int = 4
    front_end: str = "codec2"
    block_size: int = 32
    dtype: str = "float32"
    phase_groups: int = 1
    wait_cap: float = 0.8
    backlog: int = 2
    cores: str = "all"
    max_batched_tokens: int = 2048
    max_sessions: int = 64
    seed: int = 0
    start_jitter: float = 0.0
    arrivals_per_s: float = 0.0
    holding_s: float = 0.0
    eos_chance: float = 0.0
    step_noise: float = 0.0
    slowdown: float = 1.0
    shared_prefix: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            expected = {"int": int, "float": (int, float), "str": str, "bool": bool}[field.type]
            if isinstance(value, bool) != (field.type == "bool") or not isinstance(value, expected):
                raise ProfileError(f"profile {self.name}: {field.name} must be {field.type}, not {value!r}")
            if field.type == "int" and value < (
                0 if field.name in ("sinks", "backlog", "seed", "shared_prefix") else 1
            ):
                raise ProfileError(f"profile {self.name}: {field.name} must be positive, not {value}")
        # Compared first: NaN compares false, and a huge whole number has no float.
        if not 0 < self.frame_budget_s <= LONGEST_BUDGET_S:
            raise ProfileError(
                f"profile {self.name}: frame_budget_s must be above 0 and at most {LONGEST_BUDGET_S:g} s, not "
                f"{self.frame_budget_s}"
            )
        if not 0 < self.wait_cap < 1:
            raise ProfileError(f"profile {self.name}: wait_cap must lie between 0 and 1, not {self.wait_cap}")
        if self.sessions > self.max_sessions:
            raise ProfileError(
                f"profile {self.name}: {self.sessions} sessions are more than max_sessions {self.max_sessions}"
            )
        if self.dtype not in DTYPES:
            raise ProfileError(f"profile {self.name}: dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.executor not in EXECUTORS:
            raise ProfileError(f"profile {self.name}: executor {self.executor!r} is none of {', '.join(EXECUTORS)}")
        for name, most in VARIANCE_MOST.items():
            if not 0 <= getattr(self, name) <= most:
                raise ProfileError(f"profile {self.name}: {name} must be 0 to {most:g}, not {getattr(self, name)}")
        if not 0.01 <= self.slowdown <= 1000:
            raise ProfileError(f"profile {self.name}: slowdown must be 0.01 to 1000, not {self.slowdown}")
        if self.executor != "simulated":
            for name in ("hardware", "calibration", "eos_chance", "step_noise", "slowdown", "shared_prefix"):
                if getattr(self, name) != Profile.__dataclass_fields__[name].default:
                    raise ProfileError(f"profile {self.name}: {name} is for simulated engines: use a sim: profile")
        if self.pool_tokens < self.max_model_len:
            raise ProfileError(
                f"profile {self.name}: the pool of {self.pool_tokens} tokens cannot hold one session of max_model_len "
                f"{self.max_model_len}: raise pool_blocks or lower max_model_len"
            )

    @property
    def pool_tokens(self) -> int:
        return self.pool_blocks * self.block_size

    @property
    def bound(self) -> KVBound:
        return KVBound(self.window, self.sinks, self.moving_sinks)

    @property
    def frame_tokens(self) -> int:
        """Tokens that every frame of audio becomes. ProfileError where the front end has no fixed count."""
        from workbench.frontends import tokens_per_frame

        count = tokens_per_frame(self.front_end, self.frame_budget_s)
        if count is None:
            raise ProfileError(
                f"front end {self.front_end} has no fixed count of tokens per frame: use codec2 for this"
            )
        return count

    @property
    def growth(self) -> int:
        """Tokens a session grows by each frame."""
        return growth_per_frame(self.frame_tokens, self.tokens_owed)

    def check_bound(self, bound: KVBound, frame_tokens: int | None = None) -> None:
        """Raise BoundError, one line, when this profile's engine cannot serve ``bound``.

        ``frame_tokens``: the most tokens of a frame, by default the front end's fixed count.
        """
        check_bound(
            bound,
            block_size=self.block_size,
            blocks_total=self.pool_blocks,
            max_model_len=self.max_model_len,
            frame_tokens=self.frame_tokens if frame_tokens is None else frame_tokens,
            owed=self.tokens_owed,
        )

    def plateau_warning(self, bounds: list[KVBound], frame_tokens: int | None = None) -> str | None:
        """One line when the sessions' plateaus exceed the pool: by how much. None when they fit."""
        tokens = self.frame_tokens if frame_tokens is None else frame_tokens
        excess = plateau_excess(bounds, self.block_size, self.pool_blocks, tokens, self.tokens_owed)
        if excess <= 0:
            return None
        return (
            f"the plateaus of {len(bounds)} bounded sessions exceed the pool by {excess} of {self.pool_blocks} blocks: "
            "they will wall too; use fewer sessions or a smaller window"
        )

    def with_(self, /, **changes) -> Profile:
        """A copy with some fields changed; an unknown field lists those there are."""
        known = [f.name for f in fields(self)]
        for key in changes:
            if key not in known:
                raise ProfileError(f"a profile has no field {key!r}: choose from {', '.join(known)}")
        return replace(self, **changes)


VARIANCE_MOST = {
    "start_jitter": 1,
    "arrivals_per_s": 1000,
    "holding_s": 1e6,
    "eos_chance": 0.99,
    "step_noise": 2,
}
EXECUTORS = ("vllm", "simulated")
SIMULATED = "sim:"
DTYPES = ("float32", "bfloat16", "float16")

PROFILES = {
    p.name: p
    for p in (
        Profile(
            name="smollm2",
            model="smollm2",
            sessions=6,
            window=256,
            pool_blocks=200,
            max_model_len=4096,
            max_positions=65536,
        ),
        Profile(
            name="tiny",
            model="tiny",
            sessions=4,
            window=64,
            pool_blocks=48,
            max_model_len=1024,
            max_positions=8192,
            frame_budget_s=0.4,
            tokens_owed=3,
            phase_groups=2,
        ),
        *interaction_profiles(Profile),
    )
}


def load_profile(name: str | Path, **changes) -> Profile:
    """A built-in profile by name, a simulated one (``sim:``), or one from a TOML file, with ``changes`` applied.

    A TOML file holds fields of Profile, and ``base`` to name the built-in profile that the rest comes from.
    Raises ProfileError.
    """
    name = str(name)
    if name.startswith(SIMULATED):
        from workbench.simulation import simulated_profile

        profile = simulated_profile(name.removeprefix(SIMULATED))
    elif name.endswith(".toml"):
        profile = _read_toml(Path(name))
    elif name in PROFILES:
        profile = PROFILES[name]
    else:
        raise ProfileError(
            f"no profile {name!r}: choose from {', '.join(PROFILES)}, "
            f"{SIMULATED}NAME, {SIMULATED}MODEL@HARDWARE or give a .toml file"
        )
    return profile.with_(**changes) if changes else profile


def _read_toml(path: Path) -> Profile:
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise ProfileError(f"cannot read profile {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} is no TOML file: {error}") from None
    base = values.pop("base", None)
    values.setdefault("name", path.stem)
    if base is not None:
        if not isinstance(base, str) or not (base in PROFILES or base.startswith(SIMULATED)):
            raise ProfileError(f"{path}: no base profile {base!r}: choose from {', '.join(PROFILES)} or a sim: profile")
        return load_profile(base).with_(**values)
    known = [f.name for f in fields(Profile)]
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ProfileError(f"{path}: a profile has no field {unknown[0]!r}: choose from {', '.join(known)}")
    try:
        return Profile(**values)
    except TypeError as error:
        needed = str(error).split(": ")[-1]
        raise ProfileError(f'{path}: missing are {needed}; or name a base profile: base = "smollm2"') from None
