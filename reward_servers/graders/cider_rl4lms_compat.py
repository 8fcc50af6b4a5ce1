"""CIDEr as RL4LMs computes it, for comparison: rarity from the batch, only the last sample of each prompt."""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.text.captions import captions_of
from reward_servers.text.cider import cider, document_frequencies


class CiderRl4lmsCompat(Settings):
    """CIDEr on spaCy's English tokens, with letter case and punctuation.

    The last of several samples with equal prompts stands for all; a batch of one prompt scores 0. The metric
    is the mean over different prompts. As a text's
    score depends on its batch, train with `cider` instead.
    """

    needs_references: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("spacy",)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        values = by_prompt(samples)
        return [values[sample.prompt] for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        values = by_prompt(samples)
        rows = tuple(values[sample.prompt] for sample in samples)
        return {"lexical/cider_rl4lms_compat": MetricValue(corpus=fmean(values.values()), rows=rows)}


def by_prompt(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the value of each prompt's last sample; a prompt's references are one document.

    Raises:
        InputError: a sample has no reference.
    """
    last = {sample.prompt: sample for sample in samples}
    captions = captions_of(list(last.values()), "cider_rl4lms_compat", "spacy")
    frequencies = document_frequencies(references for _, references in captions)
    return {
        prompt: cider(text, references, frequencies)
        for prompt, (text, references) in zip(last, captions, strict=True)
    }
