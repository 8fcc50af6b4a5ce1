"""CIDEr as RL4LMs computes it, to compare with its runs: rarity from the batch, equal prompts overwritten."""

from collections.abc import Sequence
from typing import ClassVar

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.text.cider import Tokenizer, caption_words, cider, document_frequencies, reference_words


class CiderRl4lmsCompat(Settings):
    """Of samples with equal prompts the last one stands for all; a batch of one prompt scores 0.

    The score of a text depends on its batch. `cider` is the reward to train with.
    """

    needs_references: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False

    tokenizer: Tokenizer = "ptb"

    def score(self, samples: Sequence[Sample]) -> list[float]:
        last = {sample.prompt: sample for sample in samples}
        references = {prompt: reference_words(sample, self.tokenizer) for prompt, sample in last.items()}
        frequencies = document_frequencies(references.values())
        values = {
            prompt: cider(caption_words(sample.text, self.tokenizer), references[prompt], frequencies)
            for prompt, sample in last.items()
        }
        return [values[sample.prompt] for sample in samples]
