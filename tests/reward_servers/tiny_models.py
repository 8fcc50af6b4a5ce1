"""Tiny untrained encoders and classifiers, made in a second: the same files for the same arguments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.models.new_tokenizer import word_tokenizer

WORDS = ("the", "cat", "sat", "dog", "ran", "good", "bad", "film", "a", "b", "c", "d", ".", "<EOU>")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def make_classifier(
    folder: Path,
    *,
    kind: str = "roberta",
    labels: Sequence[str] = ("negative", "positive"),
    seed: int = 0,
    window: int = 32,
) -> Path:
    """A classifier with these labels, two layers, 32 wide; `kind` is a key of `_config`."""
    import torch
    from transformers import AutoModelForSequenceClassification

    config = _config(kind, window)
    config.num_labels = len(labels)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config)
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "embed" not in name:  # sharper than untrained, so that texts differ
                weight.data *= 8
    model.save_pretrained(folder)
    _tokenizer(kind, window).save_pretrained(folder)
    return folder


def make_encoder(folder: Path, *, window: int = 32) -> Path:
    """A bare encoder, as BERTScore compares with."""
    import torch
    from transformers import AutoModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModel.from_config(_config("roberta", window))
    model.save_pretrained(folder)
    _tokenizer("roberta", window).save_pretrained(folder)
    return folder


def _tokenizer(kind: str, window: int) -> Any:
    """Words by blanks; texts end in `</s>`, and begin with `<s>` in encoders alone. GPT-2's adds nothing.

    BART's pairs have a separator of two marks. ALBERT's tokenizer gives types of pairs when asked.
    """
    from tokenizers.processors import TemplateProcessing

    names: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    if kind == "albert":
        names["model_input_names"] = ["input_ids", "attention_mask"]
    if kind != "gpt2":  # it has none
        names["pad_token"] = "<pad>"
    made = word_tokenizer([*SPECIAL, *WORDS], "<unk>", unk_token="<unk>", model_max_length=window, **names)
    bare = made.backend_tokenizer
    ends = [("<s>", 1), ("</s>", 2)]
    if kind in ("bert", "roberta"):
        bare.post_processor = TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ends
        )
    elif kind == "albert":
        bare.post_processor = TemplateProcessing(
            single="<s> $A </s>", pair="<s>:0 $A:0 </s>:0 $B:1 </s>:1", special_tokens=ends
        )
    elif kind == "bart":
        bare.post_processor = TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
        )
    elif kind != "gpt2":
        bare.post_processor = TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=ends[1:]
        )
    return made


def _config(kind: str, window: int) -> Any:
    import transformers

    size = len(SPECIAL) + len(WORDS)
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32"}
    if kind in ("bert", "roberta", "albert"):
        extra = {"embedding_size": 16} if kind == "albert" else {}
        makers = {"bert": "BertConfig", "roberta": "RobertaConfig", "albert": "AlbertConfig"}
        return getattr(transformers, makers[kind])(
            **extra,
            vocab_size=size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=window + 1,  # RoBERTa's begin after the padding's
            type_vocab_size=2,
            **ends,
        )
    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=size,
            n_positions=window,
            n_embd=32,
            n_layer=2,
            n_head=2,
            **{**ends, "pad_token_id": None},
        )
    if kind == "xlnet":
        return transformers.XLNetConfig(vocab_size=size, d_model=32, n_layer=2, n_head=2, d_inner=64, **ends)
    if kind == "t5":
        shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
        return transformers.T5Config(vocab_size=size, decoder_start_token_id=0, **shape, **ends)
    return transformers.BartConfig(
        vocab_size=size,
        max_position_embeddings=window,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        decoder_start_token_id=2,
        **ends,
    )
