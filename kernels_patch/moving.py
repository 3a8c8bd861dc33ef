"""Sinks that move: at an eviction the keys of the pinned tokens are rotated to the positions before the window.

A key in the cache is rotated by its position, a value is not, and nothing else of a pinned token hangs on where it
stands: the first tokens of a session see one another alone, and among them only distances count. So a key that is
turned back by its old position and forward by its new one, by the rows of the model's own rotary table, is the key that
the model would have computed there. The keys turned back are kept, so that however often they move they are rounded
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels_patch.guard import PluginError
from kernels_patch.positions import EXTRA_ARGS_KEY, MOVED_KEY, offsets

# From a layer's KV cache (blocks, heads, block size, 2 x head size) and the numbers of some blocks: their keys as
# (blocks, block size, heads, head size), a copy; and the way back. Which of them a backend has is found out by trial.
Read = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def _read_rows(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    return cache[blocks][..., : cache.shape[3] // 2].transpose(1, 2)


def _write_rows(cache: torch.Tensor, blocks: torch.Tensor, keys: torch.Tensor) -> None:
    cache[blocks, :, :, : cache.shape[3] // 2] = keys.transpose(1, 2)


def _key_half(cache: torch.Tensor) -> torch.Tensor:
    """The first half of each head of a block, as (blocks, heads, head size, block size): a CPU's packed keys."""
    blocks, heads, size, both = cache.shape
    return cache.view(blocks, heads, 2, both // 2, size)[:, :, 0]


def _read_columns(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    return _key_half(cache)[blocks].permute(0, 3, 1, 2)


def _write_columns(cache: torch.Tensor, blocks: torch.Tensor, keys: torch.Tensor) -> None:
    _key_half(cache)[blocks] = keys.permute(0, 2, 3, 1)


LAYOUTS: dict[str, tuple[Read, Write]] = {
    "rows": (_read_rows, _write_rows),
    "columns": (_read_columns, _write_columns),
}


def layout_of(layer, cache: torch.Tensor) -> str | None:
    """The name of the layout in which ``layer``'s backend writes keys to ``cache``; None for one that is not known.

    The backend writes keys of known values to a small cache of the same kind, and each layout reads them.
    """
    if cache.dim() != 4 or not cache.dtype.is_floating_point or cache.element_size() < 2:
        return None
    scratch = torch.zeros_like(cache[:2])
    size, heads, head = cache.shape[2], cache.shape[1], cache.shape[3] // 2
    keys = torch.arange(size * heads * head, device=cache.device).remainder(251).view(size, heads, head)
    keys = (keys + 251 * torch.arange(heads, device=cache.device)[:, None]).to(cache.dtype)
    slots = torch.arange(size, 2 * size, dtype=torch.int64, device=cache.device)
    layer.impl.do_kv_cache_update(layer, keys, -keys, scratch, slots)
    block = torch.tensor([1], device=cache.device)
    for name, (read, _) in LAYOUTS.items():
        # Packed keys have no shape of their own, so they can only be seen in memory without gaps.
        if (name != "columns" or scratch.is_contiguous()) and torch.equal(read(scratch, block)[0], keys):
            return name
    return None


class Rotary:
    """A model's rotary embedding, turned forward and back by the rows of its own table."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._table = module.cos_sin_cache
        self._width, self._halves = module.rotary_dim, module.is_neox_style

    def turn(self, keys: torch.Tensor, positions: torch.Tensor, back: bool = False) -> torch.Tensor:
        """``keys`` (layers, tokens, heads, head size) rotated by ``positions`` (tokens), in float32."""
        cos, sin = self._table[positions.to(self._table.device)].float().chunk(2, dim=-1)
        cos, sin = cos[:, None], (-sin if back else sin)[:, None]
        turned, rest = keys.float()[..., : self._width], keys.float()[..., self._width :]
        if self._halves:
            one, two = turned.chunk(2, dim=-1)
        else:
            one, two = turned[..., ::2], turned[..., 1::2]
        # Some models scale the table's rows, and rounding does: turned forward and back that would count twice.
        scale = cos**2 + sin**2 if back else 1.0
        pair = ((one * cos - two * sin) / scale, (two * cos + one * sin) / scale)
        turned = torch.cat(pair, dim=-1) if self._halves else torch.stack(pair, dim=-1).flatten(-2)
        return torch.cat([turned, rest], dim=-1)


@dataclass
class _Moved:
    """A session whose sinks moved. ``chunk``: what its newest chunk said; ``keys``: turned back, of all layers.

    ``pinning`` and the tokens' count say whose keys they are.
    """

    chunk: tuple
    pinning: int
    keys: torch.Tensor | None = None


# Named in a layer that reads another one's keys: it has none of its own to turn.
_SHARED = "kv_sharing_target_layer_name"


def language_model(model: torch.nn.Module) -> torch.nn.Module:
    """The part of a multimodal model that keeps a KV cache; a model of text alone is that itself."""
    return model.get_language_model() if getattr(model, "supports_multimodal", False) else model


def _attention_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [m for m in model.modules() if hasattr(m, "impl") and hasattr(m.impl, "do_kv_cache_update")]


def _only_rotary(model: torch.nn.Module) -> torch.nn.Module:
    """The rotary embedding of all attention layers of ``model``. Raises PluginError where it is not one for all."""
    tables = {id(m.cos_sin_cache): m for m in model.modules() if hasattr(m, "cos_sin_cache")}
    only = next(iter(tables.values()), None)
    if len(tables) != 1:
        raise PluginError(f"sinks cannot move in this model: {len(tables)} kinds of rotary embedding, one is needed")
    if not hasattr(only, "is_neox_style") or any(True for _ in only.parameters()):
        raise PluginError(f"sinks cannot move in this model: {type(only).__name__} is no plain rotary embedding")
    layers = {id(layer) for layer in _attention_layers(model)}
    for module in model.modules():
        rotates = getattr(module, "rotary_emb", None) is not None and getattr(module, "use_rope", True)
        if not rotates and any(id(child) in layers for child in module.children()):
            raise PluginError("sinks cannot move in this model: it has attention layers without rotary embedding")
    return only


class SinkMover:
    """Moves the sinks of the sessions of a V1 ``runner`` whose chunks ask for it.

    Raises PluginError where the model or the attention backend does not let it; what else is bounded is served there.
    """

    def __init__(self, runner) -> None:
        self._runner = runner
        self._sessions: dict[str, _Moved] = {}
        model = language_model(runner.get_model())
        self._rotary = Rotary(_only_rotary(model))
        layers = [layer for layer in _attention_layers(model) if getattr(layer, _SHARED, None) is None]
        self._caches = [layer.kv_cache for layer in layers]
        try:
            layouts = {layout_of(layer, cache) for layer, cache in zip(layers, self._caches, strict=True)}
        except Exception as error:
            # A backend that cannot be tried out serves as before, but its sinks stay.
            reason = " ".join(str(error).split())
            raise PluginError(
                f"sinks cannot move on this attention backend, which a trial ends with: {reason}"
            ) from error
        if len(layouts) != 1 or None in layouts:
            raise PluginError("sinks cannot move on this attention backend: its layout of keys is not known")
        self._read, self._write = LAYOUTS[layouts.pop()]

    def move(self, rows: int) -> None:
        """Before a step's forward pass: turn the keys of the sinks that moved, for the batch's ``rows`` sessions."""
        runner = self._runner
        for gone in self._sessions.keys() - runner.requests.keys():
            del self._sessions[gone]
        for row in range(rows):
            request_id = runner.input_batch.req_ids[row]
            if runner.input_batch.num_computed_tokens_cpu[row] == 0:
                # Prefilled afresh after a preemption: keys computed anew may be others.
                self._sessions.pop(request_id, None)
            params = runner.requests[request_id].sampling_params
            chunk = params and params.extra_args and params.extra_args.get(MOVED_KEY)
            if chunk:
                self._move(request_id, row, tuple(chunk), params.extra_args[EXTRA_ARGS_KEY])

    def _move(self, request_id: str, row: int, chunk: tuple, spans) -> None:
        count, cached, pinning = chunk
        session = self._sessions.get(request_id)
        computed = int(self._runner.input_batch.num_computed_tokens_cpu[row])
        if computed < count:
            # Prefilled afresh after a preemption, and at once where they belong.
            self._sessions[request_id] = _Moved(chunk, pinning)
            return
        if session is not None and session.chunk == chunk:
            return
        device = self._caches[0].device
        table = self._runner.input_batch.block_table[0]
        blocks = torch.from_numpy(table.block_table.np[row, : count // table.block_size].copy()).long().to(device)
        keys = session.keys if session is not None and session.pinning == pinning else None
        at = torch.arange(count, device=device)
        if keys is None or keys.shape[1] != count:
            held = torch.stack([self._read(cache, blocks).flatten(0, 1) for cache in self._caches])
            keys = self._rotary.turn(held, at + torch.from_numpy(offsets(cached, 0, count)).to(device), back=True)
        turned = self._rotary.turn(keys, at + torch.from_numpy(offsets(spans, 0, count)).to(device))
        for cache, layer in zip(self._caches, turned, strict=True):
            self._write(cache, blocks, layer.view(len(blocks), -1, *layer.shape[1:]).to(cache.dtype))
        self._sessions[request_id] = _Moved(chunk, pinning, keys)
