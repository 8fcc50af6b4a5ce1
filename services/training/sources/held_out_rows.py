"""Held-out rows of a run, with which evaluations measure the learner."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.algorithms.nll import NLL
from services.config.data_settings import DataSettings
from services.data.annotated.responses import ResponseData
from services.data.annotated.rows import check_vocabulary, read_annotated
from services.data.tasks.base import Split
from services.data.tasks.responses import ResponseRow
from services.data.tokens.response_tokens import ResponseTokens
from services.training.sources.annotated_data import source_of
from services.training.sources.data_needs import needs_of
from services.training.sources.offline import OfflineSource
from services.training.sources.own_rows import as_they_are, first_groups, is_annotated, rows_of

MEASURES = ("loss", "perplexity", "token_accuracy", "rewards/accuracy", "rewards/margin")


def held_out_rows(data: ResponseData | None, split: Split, num_prompts: int | None) -> list[ResponseRow]:
    """Return the rows of a split's first `num_prompts` prompts; [] if they can't be read.

    A split of prompts without responses is valid, because evaluations use the prompts.
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

    Algorithms that weight responses are measured only on good ones, whatever their rewards.

    Args:
        kept: folder of the split's annotation, for algorithms that compare with a reference. None: only check
            that examples exist, before the annotation does.

    Raises:
        InputError: there are no examples, or their annotation is missing or has another vocabulary.
    """
    needs = needs_of(algorithm, (), data)
    if not algorithm.traits.prefers:
        algorithm = NLL()
        needs = replace(needs, reference=False, scores=False, values=False, rewards=())
    of_split: Sequence[ResponseRow] = first_groups(rows_of(data, split).rows, num_prompts)
    rows = as_they_are(of_split, needs)
    if needs.reference and kept is not None:
        if not is_annotated(kept, of_split):
            raise InputError(f"{kept} has no log-probabilities of these rows under the start model")
        check_vocabulary(kept, to_tokens.tokenizer)
        rows = read_annotated(kept, (), needs_reference=True)
    return source_of(rows, algorithm, needs, data, to_tokens, seed=0)
