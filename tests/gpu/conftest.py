"""A GPU, or no test; and a small, confident model with heads as large as in real models."""

from pathlib import Path

import pytest
import torch

from services.models.new_tokenizer import word_tokenizer


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 of two layers, width 128, heads of 64, and 64 tokens, of which none is special."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    folder = tmp_path_factory.mktemp("model")
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    word_tokenizer((f"w{i}" for i in range(64)), "w0", eos_token="w0").save_pretrained(folder)
    return folder
