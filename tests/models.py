"""Tiny untrained models with tokenizers of words, made in a second: the same files for the same arguments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from services.models.new_tokenizer import word_tokenizer

Causal = Literal["llama", "gpt2"]
Seq2Seq = Literal["t5", "mt5", "bart"]
Architecture = Literal[Causal, Seq2Seq]

SPECIAL = ("<pad>", "<eos>", "<unk>")
NUMBERS = tuple(str(number) for number in range(100))
ENDS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "dtype": "float32"}


def make_tiny_model(
    folder: Path,
    *,
    architecture: Architecture = "llama",
    vocab: Sequence[str] = NUMBERS,
    seed: int = 0,
    window: int = 128,
    sharpness: float = 1.0,
) -> Path:
    """Write a random model of two layers, 64 wide, with its tokenizer; returns `folder`.

    Heads are 32 wide, the least that vLLM's kernels take on a CPU. Token ids: 0 `<pad>`, 1 `<eos>`,
    2 `<unk>`, then `vocab` in its order. Texts are split at blanks, tokens are joined by blanks; the
    tokenizers of the encoder-decoder models (t5, mt5, bart) put `<eos>` after each text, as theirs do.

    Args:
        sharpness: the standard deviation of the initial weights, in the architecture's own; at 1 the
            causal models and BART write every token almost equally often.
    """
    import torch

    is_seq2seq = architecture in get_args(Seq2Seq)
    tokenizer = _tokenizer([*SPECIAL, *vocab], window, ends_with_eos=is_seq2seq)
    config = _config(architecture, len(tokenizer), window, sharpness)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _seq2seq_model(config) if is_seq2seq else _causal_model(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _causal_model(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config)


def _seq2seq_model(config: Any) -> Any:
    """mT5 gets a head of its own, as its published weights have one; transformers would tie it."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_config(config)
    if config.model_type == "mt5":
        head = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        torch.nn.init.normal_(head, std=head.shape[1] ** -0.5)
        model.lm_head.weight = head
    return model


def _tokenizer(words: list[str], window: int, ends_with_eos: bool) -> Any:
    from tokenizers.processors import TemplateProcessing

    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    made = word_tokenizer(words, "<unk>", **names, model_max_length=window)
    if ends_with_eos:
        behind = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
        made.backend_tokenizer.post_processor = behind
    return made


def _config(architecture: Architecture, vocab_size: int, window: int, sharpness: float) -> Any:
    makers = {"llama": _llama, "gpt2": _gpt2, "t5": _t5, "mt5": _mt5, "bart": _bart}
    return makers[architecture](vocab_size, window, sharpness)


def _llama(vocab_size: int, window: int, sharpness: float) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=window,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.02 * sharpness,
        **ENDS,
    )


def _gpt2(vocab_size: int, window: int, sharpness: float) -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=vocab_size,
        n_positions=window,
        n_embd=64,
        n_layer=2,
        n_head=2,
        initializer_range=0.02 * sharpness,
        # Dropout would make two passes over the same tokens differ.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **ENDS,
    )


def _t5(vocab_size: int, window: int, sharpness: float) -> Any:
    from transformers import T5Config

    return T5Config(vocab_size=vocab_size, **_t5_shape(sharpness), **ENDS)


def _mt5(vocab_size: int, window: int, sharpness: float) -> Any:
    """Gated GELU and, once loaded, a head that is not the embedding."""
    from transformers import MT5Config

    return MT5Config(vocab_size=vocab_size, **_t5_shape(sharpness), **ENDS)


def _t5_shape(sharpness: float) -> dict[str, Any]:
    """Positions are relative: there is no window. Responses start after `<pad>`."""
    return {
        "d_model": 64,
        "d_kv": 32,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 2,
        "decoder_start_token_id": 0,
        "initializer_factor": sharpness,
    }


def _bart(vocab_size: int, window: int, sharpness: float) -> Any:
    """Positions are absolute. Responses start after `<eos>`, and the generation settings force an end:
    both as in the published models.
    """
    from transformers import BartConfig

    return BartConfig(
        vocab_size=vocab_size,
        max_position_embeddings=window,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        decoder_start_token_id=1,
        forced_eos_token_id=1,
        init_std=0.02 * sharpness,
        **ENDS,
    )
