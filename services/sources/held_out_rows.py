"""Held-out rows of a run's own: the examples by which evaluations measure the learner."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.algorithms.nll import NLL
from services.annotated.responses import ResponseData
from services.annotated.rows import check_vocabulary, read_annotated
from services.config.data_settings import DataSettings
from services.sources.annotated_data import source_of
from services.sources.data_needs import needs_of
from services.sources.offline import OfflineSource
from services.sources.own_rows import as_they_are, first_groups, is_annotated, rows_of
from services.tasks.base import Split
from services.tasks.responses import ResponseRow
from services.tokens.response_tokens import ResponseTokens

MEASURES = ("loss", "perplexity", "token_accuracy", "rewards/accuracy", "rewards/margin")


def held_out_rows(data: ResponseData | None, split: Split, num_prompts: int | None) -> list[ResponseRow]:
    """Return the rows of a split's first `num_prompts` prompts; [] where they can't be read.

    A split of prompts alone is no mistake: evaluations ask them.
    """
    try:
        return first_groups(rows_of(data, split).rows, num_prompts)
    except InputError:
        return []


def held_out_source(
    data: DataSettings,
    algorithm: Algorithm,
    split: Split,
    num_prompts: int | None,
    to_tokens: ResponseTokens,
    kept: Path | None = None,
) -> OfflineSource:
    """Return the source of a split's examples.

    Algorithms that weigh responses are measured on the good ones alone, however these are rewarded.

    Args:
        kept: the folder of the split's annotation, for algorithms that compare with a reference. None: find
            out whether there are examples, before there is an annotation.

    Raises:
        InputError: there are none, or their annotation is missing or of another vocabulary.
    """
    needs = needs_of(algorithm, (), data)
    if not algorithm.traits.prefers:
        algorithm = NLL()
        needs = replace(needs, reference=False, scores=False, values=False, rewards=())
    own: Sequence[ResponseRow] = first_groups(rows_of(data, split).rows, num_prompts)
    rows = as_they_are(own, needs)
    if needs.reference and kept is not None:
        if not is_annotated(kept, own):
            raise InputError(f"{kept} has no log-probabilities of these rows under the start model")
        check_vocabulary(kept, to_tokens.tokenizer)
        rows = read_annotated(kept, (), needs_reference=True)
    return source_of(rows, algorithm, needs, data, to_tokens, seed=0)
