"""Turning keys in the cache without an engine: vLLM's own rotary embeddings and CPU backend, and caches of rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl, _get_attn_isa

from kernels_patch.guard import PluginError
from kernels_patch.moving import LAYOUTS, Rotary, SinkMover, layout_of
from kernels_patch.positions import EXTRA_ARGS_KEY, MOVED_KEY

HEAD, HEADS, BLOCK, BLOCKS, LAYERS, ROWS = 64, 2, 32, 8, 3, 4096
TOLERANCE = 1e-5


def rotary(kind: str = "neox", dtype=torch.float32) -> RotaryEmbedding:
    with set_current_vllm_config(VllmConfig()):
        if kind == "yarn":
            return YaRNScalingRotaryEmbedding(HEAD, HEAD, ROWS // 4, 1e4, True, 4, dtype)
        width = HEAD // 2 if kind == "partial" else HEAD
        return RotaryEmbedding(HEAD, width, ROWS, 1e4, kind != "gpt-j", dtype)


def native(module, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """``keys`` (layers, tokens, heads, head) as the model itself rotates them."""
    turned = [module.forward_native(positions, each.flatten(1), each.flatten(1).clone())[1] for each in keys]
    return torch.stack(turned).view(keys.shape)


def some_keys(seed: int, tokens: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(LAYERS, tokens, HEADS, HEAD, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Rows:
    """A backend that keeps key and value of a token side by side, as FlashAttention's view of its cache shows them."""

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        block, at, head = slots // cache.shape[2], slots % cache.shape[2], cache.shape[3] // 2
        cache[block, :, at, :head], cache[block, :, at, head:] = key, value


class ValuesFirst(Rows):
    """A backend of a layout that nobody told the plugin of."""

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        super().do_kv_cache_update(layer, value, key, cache, slots)


def cpu_backend():
    backend = object.__new__(CPUAttentionBackendImpl)
    backend.attn_type, backend.kv_cache_dtype = AttentionType.DECODER, "auto"
    return backend


BACKENDS = {"rows": Rows, "columns": cpu_backend}


class Layer(torch.nn.Module):
    def __init__(self, backend, cache: torch.Tensor) -> None:
        super().__init__()
        self.impl, self.kv_cache = backend, cache
        self.isa = _get_attn_isa(cache.dtype, cache.shape[2], cache.shape[3] // 2)
        self._k_scale_float = self._v_scale_float = 1.0


def empty(dtype=torch.float32, block: int = BLOCK, token_major: bool = False) -> torch.Tensor:
    """A cache as backends see it; ``token_major`` in memory: a block's heads lie inside its tokens."""
    if token_major:
        return torch.zeros(BLOCKS, block, HEADS, 2 * HEAD, dtype=dtype).transpose(1, 2)
    return torch.zeros(BLOCKS, HEADS, block, 2 * HEAD, dtype=dtype)


@pytest.mark.parametrize("kind", ["neox", "gpt-j", "partial", "yarn"])
def test_a_key_turned_back_and_forward_is_the_one_the_model_computes_there(kind):
    module, keys, here = rotary(kind), some_keys(1, 40), torch.arange(40) + 1000
    cached, own = native(module, keys, here), Rotary(module)
    back = own.turn(cached, here, back=True)
    assert (back - keys).abs().max() < TOLERANCE
    for there in (torch.arange(40), here + 2500, torch.arange(39, -1, -1)):
        expected = native(module, keys, there)
        assert (own.turn(back, there) - expected).abs().max() < TOLERANCE
        assert (cached - expected).abs().max() > 1, "the comparison can fail"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [32, 64])
def test_the_cpu_backend_writes_keys_in_columns(dtype, block):
    cache = empty(dtype, block)
    layer = Layer(cpu_backend(), cache)
    if layer.isa == "amx":
        pytest.skip("AMX packs bfloat16 keys in a way of its own")
    cache.fill_(7)
    assert layout_of(layer, cache) == "columns"
    assert (cache == 7).all(), "the trial writes elsewhere"


@pytest.mark.parametrize("token_major", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_backend_that_stores_rows_is_recognised(dtype, token_major):
    cache = empty(dtype, token_major=token_major)
    assert layout_of(Layer(Rows(), cache), cache) == "rows"


@pytest.mark.parametrize(
    "cache",
    [empty(), empty(token_major=True), empty().flatten(1, 2), empty().to(torch.uint8), empty().to(torch.float8_e4m3fn)],
    ids=["values first", "values first, token-major", "no heads", "bytes", "8 bits"],
)
def test_another_layout_is_not_guessed_at(cache):
    layer = SimpleNamespace(impl=ValuesFirst())
    assert layout_of(layer, cache) is None


@pytest.mark.parametrize(
    ("backend", "layout", "token_major"),
    [(Rows(), "rows", False), (Rows(), "rows", True), (cpu_backend(), "columns", False)],
)
def test_keys_are_read_and_written_in_their_cells_alone(backend, layout, token_major):
    cache = empty(token_major=token_major)
    read, write = LAYOUTS[layout]
    keys, values = some_keys(2, BLOCKS * BLOCK)[:2]
    backend.do_kv_cache_update(Layer(backend, cache), keys, values, cache, torch.arange(BLOCKS * BLOCK))
    chosen, before = torch.tensor([5, 2]), cache.clone()
    stored = keys.view(BLOCKS, BLOCK, HEADS, HEAD)
    assert torch.equal(read(cache, chosen), stored[chosen]), "tokens in their order, blocks in the order asked for"
    copy = read(cache, chosen).clone()
    read(cache, chosen).fill_(0)
    assert torch.equal(cache, before), "what is read is a copy"
    write(cache, chosen, copy + 1)
    expected = stored.clone()
    expected[chosen] += 1
    again = empty()
    backend.do_kv_cache_update(
        Layer(backend, again), expected.flatten(0, 1), values, again, torch.arange(BLOCKS * BLOCK)
    )
    assert torch.equal(cache, again)


class Attention(torch.nn.Module):
    """What of a model's own attention the mover looks at: the embedding beside the layer that keeps the keys."""

    def __init__(self, rotary_emb, layer: Layer, use_rope: bool = True) -> None:
        super().__init__()
        self.rotary_emb, self.attn, self.use_rope = rotary_emb, layer, use_rope


def model_of(*modules) -> SimpleNamespace:
    model = torch.nn.ModuleList(modules)
    return SimpleNamespace(get_model=lambda: model)


def test_a_model_or_a_backend_that_does_not_let_sinks_move_is_refused():
    once, again, learned = rotary(), rotary(), rotary()
    learned.angles = torch.nn.Parameter(torch.zeros(1))

    def heads(embedding, backend=Rows, **options):
        return Attention(embedding, Layer(backend(), empty()), **options)

    SinkMover(model_of(heads(once), heads(once)))
    for modules, says in (
        ((heads(once), heads(again)), "2 kinds of rotary embedding"),
        ((heads(None),), "0 kinds of rotary embedding"),
        ((heads(learned),), "is no plain rotary embedding"),
        ((heads(once), heads(None)), "attention layers without rotary embedding"),
        ((heads(once), heads(once, use_rope=False)), "attention layers without rotary embedding"),
        ((heads(once), heads(once, ValuesFirst)), "layout of keys is not known"),
        ((heads(once, ValuesFirst),), "layout of keys is not known"),
        ((heads(once), heads(once, cpu_backend)), "layout of keys is not known"),
        ((once,), "layout of keys is not known"),
    ):
        with pytest.raises(PluginError, match=says) as error:
            SinkMover(model_of(*modules))
        assert "\n" not in str(error.value)


class Runner:
    """What the mover reads of vLLM's runner. Session "b" is the second of the batch and has two sink blocks."""

    sinks = torch.tensor([6, 3])
    count = 2 * BLOCK

    def __init__(self, layout: str, dtype=torch.float32) -> None:
        backend = BACKENDS[layout]()
        self.read, self.write = LAYOUTS[layout]
        self.rotary = rotary(dtype=dtype)
        self.layers = [Layer(backend, empty(dtype)) for _ in range(LAYERS)]
        self.model = torch.nn.ModuleList([Attention(self.rotary, layer) for layer in self.layers])
        rows = SimpleNamespace(np=np.array([[1, 2, 4], [*self.sinks.tolist(), 5]], dtype=np.int32))
        self.input_batch = SimpleNamespace(
            req_ids=["a", "b"],
            num_computed_tokens_cpu=np.array([0, 0]),
            block_table=[SimpleNamespace(block_size=BLOCK, block_table=rows)],
        )
        self.requests = {"a": SimpleNamespace(sampling_params=None)}
        everything = some_keys(3, BLOCKS * BLOCK, dtype)
        self._write(everything, -everything, torch.arange(BLOCKS * BLOCK))
        self.mover = SinkMover(self)

    def get_model(self):
        return self.model

    def _write(self, keys, values, slots) -> None:
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)

    def prefill(self, keys: torch.Tensor, offset: int) -> None:
        """The sinks of "b" computed: ``keys`` not yet rotated, at positions from ``offset`` on."""
        slots = (self.sinks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        self._write(native(self.rotary, keys, torch.arange(self.count) + offset), -keys, slots)

    def step(self, computed: int, spans, moved=None) -> None:
        extra = {EXTRA_ARGS_KEY: spans} | ({} if moved is None else {MOVED_KEY: moved})
        self.requests["b"] = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra))
        self.input_batch.num_computed_tokens_cpu[1] = computed
        self.mover.move(len(self.input_batch.req_ids))

    def move(self, there: int, here: int, pinning: int = 1) -> None:
        """The first step of a chunk that moves the sinks to offset ``there``, ``here`` being the one they have."""
        self.step(self.count + 10, [(0, there)], (self.count, [(0, here), (self.count, there)], pinning))

    def keys(self) -> torch.Tensor:
        return torch.stack([self.read(layer.kv_cache, self.sinks).flatten(0, 1) for layer in self.layers])

    def caches(self) -> torch.Tensor:
        return torch.stack([layer.kv_cache for layer in self.layers])

    def off(self, keys: torch.Tensor, offset: int) -> float:
        """How far the sinks' keys are from ``keys`` at positions from ``offset`` on."""
        return float((self.keys() - native(self.rotary, keys, torch.arange(self.count) + offset)).abs().max())


@pytest.fixture(params=BACKENDS)
def runner(request):
    return Runner(request.param)


def test_the_sinks_keys_move_once_a_chunk_and_nothing_else_does(runner):
    keys = some_keys(4, runner.count)
    runner.prefill(keys, 0)
    before = runner.caches()
    runner.move(96, 0)
    assert runner.off(keys, 96) < TOLERANCE < 1 < runner.off(keys, 0)
    after = runner.caches()
    runner.move(96, 0)
    assert torch.equal(runner.caches(), after), "the chunk's later steps"
    runner.step(200, [(0, 96)])
    assert torch.equal(runner.caches(), after), "a chunk that moves nothing"
    runner.move(160, 96)
    assert runner.off(keys, 160) < TOLERANCE
    for layer, now in zip(before, runner.caches(), strict=True):
        runner.write(now, runner.sinks, runner.read(layer, runner.sinks))
        assert torch.equal(now, layer), "values and other blocks"


def test_however_often_they_move_they_are_rounded_once():
    often, straight = Runner("rows", torch.bfloat16), Runner("rows", torch.bfloat16)
    for runner in (often, straight):
        runner.prefill(some_keys(5, runner.count, torch.bfloat16), 0)
    for k in range(60):
        often.move(32 * (k + 1), 32 * k)
    straight.move(32 * 60, 0)
    assert torch.equal(often.caches(), straight.caches())


def test_other_pinned_tokens_are_read_anew(runner):
    first, other = some_keys(6, runner.count), some_keys(7, runner.count)
    runner.prefill(first, 0)
    runner.move(32, 0)
    runner.prefill(other, 32)
    runner.move(64, 32, pinning=2)
    assert runner.off(other, 64) < TOLERANCE


def test_sinks_prefilled_where_they_belong_stay_there(runner):
    keys, spans = some_keys(8, runner.count), [(0, 96)]
    moved = (runner.count, [(0, 0), (runner.count, 96)], 1)
    runner.step(0, spans, moved)
    runner.prefill(keys, 96)
    for computed in (BLOCK, runner.count, runner.count + 20):
        runner.step(computed, spans, moved)
    assert runner.off(keys, 96) < TOLERANCE
    runner.move(128, 96)
    assert runner.off(keys, 128) < TOLERANCE


def test_sinks_prefilled_afresh_in_a_frame_that_moved_nothing_are_read_anew(runner):
    """After a preemption, or in a session opened under the name of one just closed: the kept keys are of other KV."""
    first, fresh = some_keys(9, runner.count), some_keys(10, runner.count)
    runner.prefill(first, 0)
    runner.move(32, 0)
    runner.step(0, [(0, 32)])
    runner.prefill(fresh, 32)
    runner.step(runner.count + 5, [(0, 32)])
    runner.move(64, 32)
    assert runner.off(fresh, 64) < TOLERANCE
