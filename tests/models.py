"""Tiny untrained models with tokenizers of words, made in a second: the same files for the same arguments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Architecture = Literal["llama", "gpt2"]

SPECIAL = ("<pad>", "<eos>", "<unk>")
NUMBERS = tuple(str(number) for number in range(100))


def make_tiny_model(
    folder: Path,
    *,
    architecture: Architecture = "llama",
    vocab: Sequence[str] = NUMBERS,
    seed: int = 0,
    window: int = 128,
) -> Path:
    """Write a random causal model of two layers, 64 wide, with its tokenizer; returns `folder`.

    Heads are 32 wide, the least that vLLM's kernels take on a CPU. Token ids: 0 `<pad>`, 1 `<eos>`,
    2 `<unk>`, then `vocab` in its order. Texts are split at blanks, tokens are joined by blanks.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = _tokenizer([*SPECIAL, *vocab], window)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(_config(architecture, len(tokenizer), window))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(words: list[str], window: int) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    bare.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=bare,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=window,
    )


def _config(architecture: Architecture, vocab_size: int, window: int) -> Any:
    from transformers import GPT2Config, LlamaConfig

    ends: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "dtype": "float32"}
    if architecture == "gpt2":
        # Dropout would make two passes over the same tokens differ.
        no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return GPT2Config(
            vocab_size=vocab_size, n_positions=window, n_embd=64, n_layer=2, n_head=2, **no_dropout, **ends
        )
    return LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=window,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        **ends,
    )
