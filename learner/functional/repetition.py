"""Penalise words that a text already has: change their logits, as the engines do when they draw.

For a word that was read or written, divide a positive logit by the penalty and multiply a negative one
(Keskar et al. 2019, arXiv 1909.05858, in the form of transformers and vLLM). A causal model has read its
whole context. An encoder-decoder's decoder has read its start token and its output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

ALL = slice(None)


@dataclass(frozen=True, slots=True)
class RepetitionRule:
    """A penalty, and the token with which a decoder begins; None: the model is causal.

    Example: T5 with a penalty of 1.3 is `RepetitionRule(1.3, decoder_start=0)`.
    """

    penalty: float
    decoder_start: int | None = None


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """The penalty of _N tokens of _S sequences.

    Example: two tokens of the sequence (3, 1, 3), whose first token is the prompt.

        first_SV [[3, 1, 3, 0]] (3: never)   sequences_N [0, 0]   columns_N [1, 2]

    The first can repeat word 3, the second words 1 and 3.
    """

    penalty: float
    first_SV: Tensor  # column of a word's first occurrence
    sequences_N: Tensor
    columns_N: Tensor

    def rows(self, start: int, stop: int) -> RepetitionPenalty:
        rows = slice(start, stop)
        return RepetitionPenalty(self.penalty, self.first_SV, self.sequences_N[rows], self.columns_N[rows])

    def factors(self, logits_RW: Tensor, rows: slice = ALL, words: slice = ALL) -> Tensor:
        """Return the factors (R, W) of the logits of some tokens and words, without gradient."""
        first_SW = self.first_SV[:, words]
        beyond = logits_RW.shape[-1] - first_SW.shape[-1]  # words in no sequence
        if beyond > 0:
            first_SW = torch.nn.functional.pad(first_SW, (0, beyond), value=torch.iinfo(first_SW.dtype).max)
        seen_RW = first_SW[self.sequences_N[rows], : logits_RW.shape[-1]] < self.columns_N[rows, None]
        below_RW = logits_RW < 0
        factors_RW = torch.ones_like(logits_RW)
        factors_RW.masked_fill_(seen_RW & below_RW, self.penalty)
        return factors_RW.masked_fill_(seen_RW & ~below_RW, 1 / self.penalty)


def repetition_penalty(
    rule: RepetitionRule,
    tokens_SL: Tensor,
    loss_mask_SL: Tensor,
    places_N: Tensor | None = None,
    num_words: int | None = None,
) -> RepetitionPenalty:
    """Return the penalty of the generated tokens, in the order of `MicroBatch.targets_N`.

    Args:
        places_N: flat place of the token before each generated token; None: read from the mask.
        num_words: the highest token plus 1; None: read from the tokens.
    """
    num_sequences, never = tokens_SL.shape
    columns_SL, start = torch.arange(never, device=tokens_SL.device).expand_as(tokens_SL), rule.decoder_start
    if start is not None:  # the decoder has not read the prompt
        columns_SL = columns_SL.masked_fill(~loss_mask_SL, never)
    if num_words is None:
        num_words = int(tokens_SL.max()) + 1
    first_SV = columns_SL.new_full((num_sequences, max(num_words, (start or 0) + 1)), never)
    first_SV.scatter_reduce_(1, tokens_SL, columns_SL, "amin")
    if start is not None:
        first_SV[:, start] = 0
    if places_N is None:
        places_N = loss_mask_SL.flatten().nonzero()[:, 0] - 1
    return RepetitionPenalty(rule.penalty, first_SV.int(), places_N // never, places_N % never + 1)
