"""Models of known shapes with random weights, made once under benchmarks/out/."""

from pathlib import Path
from typing import Any

from benchmarks.outcome import OUT
from learner.settings import ModelSettings
from rollout_workers.engines.choice import choose_engine
from services.models.files import read_model
from services.models.new_tokenizer import word_tokenizer


def llama_100m() -> Path:
    """Make a Llama of 98 million parameters, 390 MB in float32."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=0,
    )
    return made("llama-100m", config)


def gpt2_98m() -> Path:
    """Make a GPT-2 with 16,384 tokens: 98 million parameters, 391 MB in float32."""
    from transformers import GPT2Config

    return made("gpt2-98m", GPT2Config(vocab_size=16384, n_positions=256, bos_token_id=0, eos_token_id=0))


def gpt2_124m() -> Path:
    """Make a model of GPT-2's shape: 12 layers, width 768, 50,257 tokens."""
    from transformers import GPT2Config

    return made("gpt2-124m", GPT2Config())


def gpt2_6_layers() -> Path:
    """Make half of `gpt2_124m`: 6 layers, width 768, 50,257 tokens."""
    from transformers import GPT2Config

    return made("gpt2-6-layers", GPT2Config(n_layer=6))


def gpt2_tiny() -> Path:
    """Make a GPT of 4 layers, width 128, heads of 32, whose short steps reveal overhead."""
    from transformers import GPT2Config

    return made(
        "gpt2-tiny",
        GPT2Config(
            vocab_size=1000,
            n_positions=128,
            n_embd=128,
            n_layer=4,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        ),
    )


def gpt2_tiny_50k() -> Path:
    """Make `gpt2_tiny` with GPT-2's 50,257 tokens, whose logits take most of the memory."""
    from transformers import GPT2Config

    return made(
        "gpt2-tiny-50k",
        GPT2Config(n_positions=128, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0),
    )


def t5_tiny() -> Path:
    """Make an encoder-decoder with short steps: 4 + 4 layers, width 128, 8,000 tokens."""
    from transformers import T5Config

    return made(
        "t5-tiny",
        T5Config(
            vocab_size=8000,
            d_model=128,
            d_kv=32,
            d_ff=512,
            num_layers=4,
            num_heads=4,
            pad_token_id=0,
            eos_token_id=0,
            decoder_start_token_id=0,
        ),
    )


def t5_small_as_gpt2_tiny() -> Path:
    """Make a T5 of 2 + 2 layers, width 128, 1,000 tokens, with about as many parameters as `gpt2_tiny`."""
    from transformers import T5Config

    return made(
        "t5-small-as-gpt2-tiny",
        T5Config(
            vocab_size=1000,
            d_model=128,
            d_kv=32,
            d_ff=512,
            num_layers=2,
            num_heads=4,
            pad_token_id=0,
            eos_token_id=0,
            decoder_start_token_id=0,
        ),
    )


def made(name: str, config: Any) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    folder = OUT / name
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if not (folder / "tokenizer.json").exists():
        torch.manual_seed(0)
        kind.from_config(config).save_pretrained(folder)
        words = ["<end>", *map(str, range(1, config.vocab_size))]
        word_tokenizer(words, "<end>", unk_token="<end>", eos_token="<end>").save_pretrained(folder)
    return folder


def engine_of(model: str) -> str:
    """Return the engine that `auto` chooses for a usual model of this kind."""
    files = read_model(ModelSettings(path=model))
    return choose_engine("auto", is_encoder_decoder=files.is_encoder_decoder)
