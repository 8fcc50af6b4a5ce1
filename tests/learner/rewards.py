"""Texts that a reward model can tell apart, and tiny encoders to do it."""

from pathlib import Path
from typing import Any, get_args

import numpy as np

from learner.reward_models.batches import Example
from learner.reward_models.model import RewardModel
from learner.reward_models.settings import RewardTraining
from tests.models import NUMBERS, SPECIAL, Architecture, _tokenizer, make_tiny_model

CAUSAL_OR_SEQ2SEQ = get_args(Architecture)


def make_any(folder: Path, name: str, **changes: Any) -> Path:
    """One of `tests.models`, or "bert"."""
    return make_bert(folder, **changes) if name == "bert" else make_tiny_model(folder, architecture=name)  # type: ignore[arg-type]


def make_bert(folder: Path, **changes: Any) -> Path:
    """A random encoder of two layers whose tokenizer splits at blanks and ends texts with <eos>."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        **{
            "vocab_size": len(SPECIAL) + len(NUMBERS),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **changes,
        }
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    _tokenizer(
        [*SPECIAL, *NUMBERS], window=config.max_position_embeddings, ends_with_eos=True
    ).save_pretrained(folder)
    return folder


def toy_texts(num: int, seed: int = 0) -> list[tuple[str, int]]:
    """Texts of 2 to 14 numbers: those of label 0 are below 50, those of label 1 are not."""
    rng = np.random.default_rng(seed)
    labels = [place % 2 for place in range(num)]
    return [
        (" ".join(map(str, rng.integers(50 * label, 50 * label + 50, rng.integers(2, 15)))), label)
        for label in labels
    ]


def labelled(model: RewardModel, num: int, seed: int = 0) -> list[Example]:
    texts = toy_texts(num, seed)
    rows, _ = model.encode([text for text, _ in texts])
    return [Example((row,), label) for row, (_, label) in zip(rows, texts, strict=True)]


def pairs(model: RewardModel, num: int, seed: int = 0) -> list[Example]:
    """The text of label 1 is preferred to one of label 0."""
    rows, _ = model.encode([text for text, _ in toy_texts(2 * num, seed)])
    return [Example((rows[place + 1], rows[place]), 0.0) for place in range(0, 2 * num, 2)]


def load(folder: Path, names: tuple[str, ...] = ("low", "high"), **settings: Any) -> RewardModel:
    return RewardModel(str(folder), names, RewardTraining(**{"device": "cpu", **settings}))
