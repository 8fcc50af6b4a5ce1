"""CIDEr-D of the text against its references (0 to 10); rare n-grams count most."""

from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from pydantic import Field

from contracts.errors import InputError
from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.graders.grader import mean_of
from reward_servers.text.captions import Tokenizer, caption_words, captions_of, check_tokenizer
from reward_servers.text.cider import DocumentFrequencies, cider, document_frequencies
from reward_servers.text.reference_file import read_reference_sets


class Cider(Settings):
    """CIDEr-D with the rarity of n-grams from a file of references, usually the training split's.

    A reward sees small batches in any order. If it measured rarity over a batch, a text's score would depend
    on the other texts. The file has a line `{"references": ["…"]}` for each set of references; the
    samples' own references need not be among them.
    """

    needs_references: ClassVar[bool] = True

    df_file: str = Field(min_length=1)
    tokenizer: Tokenizer = "ptb"

    def check(self) -> None:
        """Refuse a file that can't be read, or has fewer than two sets: all weights would be 0."""
        check_tokenizer(self.tokenizer, "CIDEr")
        if len(read_reference_sets(self.df_file)) < 2:
            raise InputError(
                f"df_file={self.df_file} has one set of references. CIDEr counts an n-gram's rarity over the "
                f"lines; expected two or more"
            )

    def load(self) -> None:
        frequencies_of(self.df_file, self.tokenizer)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        frequencies = frequencies_of(self.df_file, self.tokenizer)
        return [
            cider(text, references, frequencies)
            for text, references in captions_of(samples, "CIDEr", self.tokenizer)
        ]


class CiderOfSplit(Settings):
    """CIDEr-D with each sample as one document, even if its prompt occurs twice.

    Rarity is measured over the samples of the call; a single sample has no rarity and gets 0.
    """

    needs_references: ClassVar[bool] = True

    tokenizer: Tokenizer = "ptb"

    def check(self) -> None:
        check_tokenizer(self.tokenizer, "CIDEr")

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        captions = captions_of(samples, "CIDEr", self.tokenizer)
        frequencies = document_frequencies(references for _, references in captions)
        rows = [cider(text, references, frequencies) for text, references in captions]
        return {"lexical/cider": mean_of(rows)}


@cache
def frequencies_of(file: str, tokenizer: Tokenizer) -> DocumentFrequencies:
    """Return the file's document frequencies, counted once for each process."""
    sets = read_reference_sets(file)
    words = iter(caption_words([text for texts in sets for text in texts], tokenizer))
    return document_frequencies([next(words) for _ in texts] for texts in sets)
