"""CIDEr as RL4LMs computes it, to compare with its runs: rarity from the batch, equal prompts overwritten."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.text.captions import captions_of
from reward_servers.text.cider import cider, document_frequencies


class CiderRl4lmsCompat(Settings):
    """Words are spaCy's English tokens: letter case counts, and so does punctuation.

    Of samples with equal prompts the last one stands for all; a batch of one prompt scores 0. The score of a
    text depends on its batch. `cider` is the reward to train with.
    """

    needs_references: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("spacy",)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        values = by_prompt(samples)
        return [values[sample.prompt] for sample in samples]


def by_prompt(samples: Sequence[Sample]) -> dict[str, float]:
    """The value of each prompt's last sample; a prompt's references are one document.

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
