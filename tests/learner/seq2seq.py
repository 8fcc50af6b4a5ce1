"""Tiny encoder-decoders, rollouts of one turn for them, and the plain pass that they are judged by."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from contracts.rollout import Rollout
from tests.learner.tiny import VOCAB, rollout
from tests.models import make_tiny_model

# t5: tied, its states shrunk in front of the head; t5_gated: as T5 1.1, with a head of its own
Name = Literal["t5", "t5_gated", "mt5", "bart"]
NAMES: tuple[Name, ...] = get_args(Name)
WORDS = tuple(f"w{i}" for i in range(3, VOCAB))


def make_model(folder: Path, name: Name) -> Path:
    """A random model whose next-token distributions are far from uniform, with its tokenizer."""
    if name == "t5_gated":
        return _make_t5_gated(folder)
    sharpness = 7.5 if name == "bart" else 1.5
    make_tiny_model(folder, architecture=name, vocab=WORDS, window=48, sharpness=sharpness)
    if name == "bart":
        lm = load(folder)
        lm.final_logits_bias.copy_(
            torch.linspace(-1, 1, VOCAB)[torch.randperm(VOCAB)]
        )  # published ones are 0
        lm.save_pretrained(folder)
    return folder


def _make_t5_gated(folder: Path) -> Path:
    from transformers import AutoConfig, T5ForConditionalGeneration

    make_tiny_model(folder, architecture="t5", vocab=WORDS, sharpness=1.5)
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }
    for name in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act"):  # the published files name neither
        del config[name]
    file.write_text(json.dumps(config))
    torch.manual_seed(3)
    lm = T5ForConditionalGeneration(AutoConfig.from_pretrained(folder))
    lm.lm_head.weight = torch.nn.Parameter(0.2 * torch.randn_like(lm.lm_head.weight))
    lm.save_pretrained(folder)
    file.write_text(json.dumps(config))
    return folder


def load(folder: Path) -> Any:
    from transformers import AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()


def single_turns(num: int, seed: int = 0) -> list[Rollout]:
    """Prompts of 1 … 9 tokens, answers of 1 … 12, independently of each other: very uneven on both sides."""
    rng = np.random.default_rng(seed)

    def draw(longest: int) -> Sequence[int]:
        tokens: list[int] = rng.integers(0, VOCAB, rng.integers(1, longest + 1)).tolist()
        return tokens

    return [rollout(i, draw(9), draw(12), float(rng.normal())) for i in range(num)]


def read(lm: Any, one: Rollout) -> dict[str, Tensor]:
    """Inputs with which the model writes the rollout's response, alone and unpadded."""
    (turn,) = one.turns
    return {
        "input_ids": torch.tensor([turn.observation]),
        "decoder_input_ids": torch.tensor([[lm.config.decoder_start_token_id, *turn.tokens[:-1]]]),
    }


def plain_logits(lm: Any, one: Rollout) -> Tensor:
    """Logits (N, V) in front of each token of the response, by the model's own forward of this row alone."""
    logits: Tensor = lm(**read(lm, one), use_cache=False).logits[0].float()
    return logits


def plain_logprobs(lm: Any, one: Rollout) -> Tensor:
    chosen = torch.tensor(one.turns[0].tokens)[:, None]
    return plain_logits(lm, one).log_softmax(-1).gather(-1, chosen).squeeze(-1)


def plain_states(lm: Any, one: Rollout) -> Tensor:
    """The decoder's last hidden states (N, H)."""
    states: Tensor = lm(**read(lm, one), use_cache=False, output_hidden_states=True).decoder_hidden_states[
        -1
    ][0]
    return states
