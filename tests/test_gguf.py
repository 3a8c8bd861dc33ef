"""Facts about the real model's folder, read out of its GGUF file. It is built once per machine, in the real cache."""

from pathlib import Path

import numpy as np
import pytest

from workbench import weights


def parameters(config: dict) -> int:
    """Parameters of a Llama without biases, by its config."""
    hidden, head = config["hidden_size"], config["head_dim"]
    attention = 2 * hidden * head * (config["num_attention_heads"] + config["num_key_value_heads"])
    layer = attention + 3 * hidden * config["intermediate_size"] + 2 * hidden
    embeddings = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return config["num_hidden_layers"] * layer + embeddings + hidden


def test_rows_in_halves_parts_the_pairs_of_every_head():
    from workbench._gguf import rows_in_halves

    weight = np.arange(12)[:, None] * np.ones((1, 3))
    assert rows_in_halves(weight, heads=2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return weights.model_path("smollm2")


def test_smollm2_config_is_that_of_the_published_model(smollm2):
    config = weights.model_config("smollm2")
    published = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": pytest.approx(1e-5),
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: config[key] for key in published} == published


def test_smollm2_tokenizer(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert len(tokenizer) == 49152 and tokenizer.model_max_length == 8192
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer("<|im_start|>user").input_ids[0] == 1
    # No BOS is added; every digit is a token of its own and leaves the spaces before it together.
    assert tokenizer.tokenize("it is  2024") == ["it", "Ġis", "ĠĠ", "2", "0", "2", "4"]
    text = "Naïve 東京 🙂\n\n  x1,234"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert "<|im_start|>user\nhi<|im_end|>" in asked


def test_smollm2_answers(smollm2):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model, report = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    assert model.num_parameters() == parameters(weights.model_config("smollm2"))
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}

    def answer(beginning: str) -> str:
        asked = tokenizer(beginning, return_tensors="pt")
        told = model.generate(**asked, max_new_tokens=6, do_sample=False)[0, asked.input_ids.shape[1] :]
        return tokenizer.decode(told)

    assert answer("The capital of France is").split()[0].strip(".,") == "Paris"
    # Paris comes even with q and k rows in the wrong order; counting needs to know where each word stands.
    assert answer("One, two, three, four,").startswith(" five, six,")
