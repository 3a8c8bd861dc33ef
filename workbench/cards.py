"""Cards: the dimensions of a model and the rates of a GPU, each number with its source.

They bound the blocks of KV that fit from above (``pool_blocks``), and a step's time from below (workbench.roofline).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path

from workbench.bound import growth_per_frame

MEMORY_UTILISATION = 0.92
MEMORY_UTILISATION_SOURCE = "vLLM 0.32, vllm/config/cache.py: default of gpu_memory_utilization"
_KINDS = {"int": (int, "a whole number"), "float": ((int, float), "a number"), "str": (str, "a text of one line")}


class CardError(ValueError):
    """A card that cannot be used, or asked too much of; one line that names the field and says what to do."""


def _number(low: float, high: float):
    return field(metadata={"range": (low, high)})


@dataclass(frozen=True)
class _Card:
    """Every field but name and title has its source in ``sources``. A wrong field is a CardError."""

    name: str
    title: str

    def __post_init__(self) -> None:
        if not isinstance(self.sources, dict):
            raise self._refused("sources must be a table of texts")
        sourced = [f.name for f in fields(self) if f.name not in ("name", "title", "sources")]
        for each in fields(self):
            if each.name != "sources":
                self._check(each, getattr(self, each.name))
            if each.name in sourced and not str(self.sources.get(each.name, "")).strip():
                raise self._refused(f"{each.name} has no source: say in sources where it comes from")
        for key, text in self.sources.items():
            if key not in sourced or not isinstance(text, str):
                raise self._refused(f"sources holds {key!r}, which is no text on a number of this card")

    def _check(self, each, value) -> None:
        kind, what = _KINDS[each.type]
        words = kind is not str or (isinstance(value, str) and value.strip() and value.isprintable())
        if isinstance(value, bool) or not isinstance(value, kind) or not words:
            raise self._refused(f"{each.name} must be {what}, not {value!r}")
        choices = each.metadata.get("choices", (value,))
        if value not in choices:
            raise self._refused(f"{each.name} must be one of {', '.join(map(str, choices))}, not {value!r}")
        low, high = each.metadata.get("range", (value, value))
        if not low <= value <= high:  # NaN compares false
            raise self._refused(f"{each.name} must lie between {low:g} and {high:g}, not {value}")

    def _refused(self, message: str) -> CardError:
        return CardError(f"card {self.name!r}: {message}")


@dataclass(frozen=True)
class ModelCard(_Card):
    """What a model asks of an engine, as served.

    layers, hidden, heads, kv_heads, head_dim, vocab: of the language part.
    parameters: all that is resident on the GPU: language part, and the audio encoder where encoder_place is "step".
    active_parameters: those that one decoded token is multiplied with: the head, but no embedding that is looked up.
    experts, experts_per_token, expert_parameters: a layer's, a token's in a layer, all layers'; 0 for a dense model.
    weight_bytes, kv_bytes: of one parameter, of one KV element. frame_budget_s: B. tokens_per_frame: what the audio of
    B becomes in the engine, with the marks that belong to its placeholder. tokens_owed: reply tokens per frame.
    encoder_positions_per_s: what the audio encoder's layers see per second of audio. encoder_place: "step" where it
    runs inside the engine step, else "outside". max_positions: the longest session, in tokens, as published.
    block_size: tokens of a KV block. Derived: head_parameters, which only a sampled token needs; growth_per_frame and
    fill_rate_tokens_per_s, by which a session's KV grows, in tokens.
    """

    layers: int = _number(1, 1_000)
    hidden: int = _number(8, 1e6)
    heads: int = _number(1, 10_000)
    kv_heads: int = _number(1, 10_000)
    head_dim: int = _number(1, 4_096)
    vocab: int = _number(2, 1e7)
    parameters: int = _number(1e3, 1e13)
    active_parameters: int = _number(1e3, 1e13)
    experts: int = _number(0, 100_000)
    experts_per_token: int = _number(0, 100_000)
    expert_parameters: int = _number(0, 1e13)
    weight_bytes: int = field(metadata={"choices": (1, 2, 4)})
    kv_bytes: int = field(metadata={"choices": (1, 2, 4)})
    frame_budget_s: float = _number(0.001, 3_600)
    tokens_per_frame: int = _number(1, 1e6)
    tokens_owed: int = _number(1, 1e6)
    encoder_parameters: int = _number(0, 1e12)
    encoder_positions_per_s: float = _number(0, 1e5)
    encoder_place: str = field(metadata={"choices": ("step", "outside")})
    max_positions: int = _number(1, 1e9)
    block_size: int = _number(1, 1_024)
    sources: dict[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise self._refused(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        for part, whole in (("active_parameters", "parameters"), ("experts_per_token", "experts")):
            if getattr(self, part) > getattr(self, whole):
                raise self._refused(f"{part} {getattr(self, part)} exceed {whole} {getattr(self, whole)}")
        if len({self.experts > 0, self.experts_per_token > 0, self.expert_parameters > 0}) > 1:
            raise self._refused("experts, experts_per_token and expert_parameters are all 0 or all above 0")
        if self.shared_parameters < self.head_parameters:
            raise self._refused("active_parameters are too few for the head (hidden x vocab) and a token's experts")
        if self.step_parameters > self.parameters:
            raise self._refused("parameters are too few for the active ones, all experts and the encoder together")

    @property
    def head_parameters(self) -> int:
        return self.hidden * self.vocab

    @property
    def shared_parameters(self) -> int:
        """The active parameters that are no expert's: every step reads them."""
        return self.active_parameters - self.expert_parameters * self.experts_per_token // max(1, self.experts)

    @property
    def step_encoder_parameters(self) -> int:
        return self.encoder_parameters if self.encoder_place == "step" else 0

    @property
    def step_parameters(self) -> int:
        """The most parameters that one step reads: shared, all experts, and the encoder where it runs in the step."""
        return self.shared_parameters + self.expert_parameters + self.step_encoder_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers."""
        return self.layers * self.kv_heads * self.head_dim * 2 * self.kv_bytes

    @property
    def growth_per_frame(self) -> int:
        return growth_per_frame(self.tokens_per_frame, self.tokens_owed)

    @property
    def fill_rate_tokens_per_s(self) -> float:
        return self.growth_per_frame / self.frame_budget_s

    @property
    def weight_memory_bytes(self) -> int:
        return self.parameters * self.weight_bytes


@dataclass(frozen=True)
class HardwareCard(_Card):
    """One GPU. memory_bytes: the total the driver reports. Rates: dense operations (a multiply and an add are two)."""

    memory_bytes: int = _number(1e9, 1e13)
    bandwidth_bytes_per_s: float = _number(1e9, 1e15)
    bf16_flops: float = _number(1e9, 1e18)
    fp8_flops: float = _number(1e9, 1e18)
    sources: dict[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fp8_flops < self.bf16_flops:
            raise self._refused(f"fp8_flops {self.fp8_flops:g} lie below bf16_flops: is one of them sparse?")


def model_card(name_or_path: str | Path) -> ModelCard:
    """A built-in model card by name, or the one card of a .toml file. Raises CardError."""
    return _load(ModelCard, "model", "models.toml", str(name_or_path))


def hardware_card(name_or_path: str | Path) -> HardwareCard:
    """A built-in hardware card by name, or the one card of a .toml file. Raises CardError."""
    return _load(HardwareCard, "hardware", "hardware.toml", str(name_or_path))


def _load(kind: type, word: str, file: str, name: str):
    if name.endswith(".toml"):
        label, values = name, _read_file(Path(name))
    else:
        cards = tomllib.loads(files("workbench").joinpath("cards_data", file).read_text(encoding="utf-8"))
        if name not in cards:
            raise CardError(f"no {word} card {name!r}: choose from {', '.join(cards)} or give a .toml file")
        label, values = f"card {name!r}", {"name": name, **cards[name]}
    known = [f.name for f in fields(kind)]
    for key in values:
        if key not in known:
            raise CardError(f"{label}: a {word} card has no field {key!r}: choose from {', '.join(known)}")
    if missing := [key for key in known if key not in values]:
        raise CardError(f"{label}: {', '.join(missing)} missing: a {word} card needs every field")
    return kind(**values)


def _read_file(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CardError(f"cannot read card {path}: {error.strerror}") from None
    except ValueError as error:  # no TOML, no UTF-8, or a whole number of thousands of digits
        raise CardError(f"{path} is no TOML file: {error}") from None


def pool_blocks(
    model: ModelCard, hardware: HardwareCard, *, utilisation: float = MEMORY_UTILISATION, block_size: int | None = None
) -> int:
    """Blocks of KV that fit beside the weights: an upper bound, for activations and CUDA graphs take memory too.

    (memory_bytes x utilisation - weights) / (KV bytes per token x block_size), rounded down; ``block_size`` in tokens,
    by default the model card's. Raises CardError when the weights do not fit.
    """
    block_size = model.block_size if block_size is None else block_size
    if not 0 < utilisation <= 1:
        raise CardError(f"utilisation must be above 0 and at most 1, not {utilisation}")
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise CardError(f"block_size must be a whole number of tokens, 1 or more, not {block_size!r}")
    room = int(hardware.memory_bytes * utilisation) - model.weight_memory_bytes
    if room < 0:
        lack = f"{-room / 1e9:.1f} GB are missing for the weights"
        raise CardError(f"{model.name} does not fit {hardware.name} at utilisation {utilisation:g}: {lack}")
    return room // (model.kv_bytes_per_token * block_size)
