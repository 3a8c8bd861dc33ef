"""A model's folder: where it is, whose code may run, and what its config says of its decoder."""

from __future__ import annotations

import json
import shutil

import pytest

from workbench.engine import EngineError
from workbench.engine.model import (
    check_trust,
    decoder_config,
    decoder_override,
    has_own_code_alone,
    hears,
    model_folder,
    read_config,
)
from workbench.weights import model_path

NESTED = {"architectures": ["Qwen2_5OmniModel"], "thinker_config": {"text_config": {"hidden_size": 8}}}


def write(folder, config) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))


def test_a_folder_that_there_is_not_is_refused_in_one_line(tmp_path):
    for missing in ("no-such-model", str(tmp_path), str(tmp_path / "deep" / "er")):
        with pytest.raises(EngineError, match=r"^no model [^\n]+ a folder with a config.json or a hub id$"):
            model_folder(missing, print)


def test_a_hub_id_that_is_not_here_and_cannot_be_had_is_refused_in_one_line(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []

    def none(model, local_files_only=False):
        asked.append((model, local_files_only))
        raise OSError("no network\nand a second line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", none)
    said = []
    with pytest.raises(
        EngineError, match=r"^a-lab/its-model is not on this machine and cannot be downloaded \(no netw"
    ):
        model_folder("a-lab/its-model", said.append)
    assert asked == [("a-lab/its-model", True), ("a-lab/its-model", False)]
    assert said == ["downloading a-lab/its-model"]


def test_a_hub_id_that_is_here_is_not_asked_for(monkeypatch, tmp_path):
    import huggingface_hub

    write(tmp_path / "here", {})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda model, local_files_only: tmp_path / "here")
    assert model_folder("a-lab/its-model", lambda line: pytest.fail(line)) == tmp_path / "here"


def test_code_in_a_folder_runs_for_who_says_so_only(tmp_path):
    own = {"auto_map": {"AutoConfig": "configuration.Config"}}
    write(tmp_path / "m", {**own, "model_type": "nobody-knows"})
    with pytest.raises(EngineError, match="^m needs the Python code in its folder: .* set trust_remote_code = true"):
        check_trust(tmp_path / "m", trusted=False)
    check_trust(tmp_path / "m", trusted=True)
    for needs_none in ({}, {**own, "model_type": "llama"}):
        write(tmp_path / "m", needs_none)
        check_trust(tmp_path / "m", trusted=False)


def test_a_built_folder_is_trusted_while_its_code_is_the_package_s(tmp_path):
    name = "minicpm-o-4.5-tiny"
    assert has_own_code_alone(name, model_path(name)) and not has_own_code_alone("elsewhere", model_path(name))
    folder = tmp_path / "copy"
    shutil.copytree(model_path(name), folder)
    (code, *_) = sorted(folder.glob("*.py"))
    code.write_text(code.read_text() + "# changed\n")
    assert not has_own_code_alone(name, folder)
    code.write_text("")
    (folder / "another.py").write_text("")
    assert not has_own_code_alone(name, folder)


def test_the_decoder_is_found_where_a_config_keeps_it():
    assert decoder_config(NESTED) == {"hidden_size": 8}
    assert decoder_override(NESTED, n=1) == {"thinker_config": {"text_config": {"n": 1}}}
    assert decoder_override({"text_config": {}}, n=1) == {"text_config": {"n": 1}}
    flat = {"hidden_size": 4}
    assert decoder_config(flat) is flat and decoder_override(flat, n=1) == {"n": 1}


def test_which_models_hear():
    assert hears(NESTED) and not hears({}) and not hears(read_config(model_path("tiny")))


def test_a_config_that_is_none_is_said(tmp_path):
    write(tmp_path / "m", "{")
    with pytest.raises(EngineError, match=r"^[^\n]*config.json cannot be read: [^\n]+$"):
        read_config(tmp_path / "m")


@pytest.mark.parametrize("text", ["[]", "null", '"x"'])
def test_a_config_of_another_kind_is_said(tmp_path, text):
    write(tmp_path / "m", text)
    with pytest.raises(EngineError, match=r"^[^\n]*config.json holds no JSON object: [^\n]+$"):
        read_config(tmp_path / "m")
