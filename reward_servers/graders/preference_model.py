"""P(good) of the text by a preference model that answers "good" or "bad", less for missing concepts."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.models.checkpoint import preference_kind


class PreferenceModel(Settings):
    """P(good) / (1 + concept_penalty_coeff · missing concepts): RL4LMs' `common_gen_preference_model`.

    The model is a classifier with a single label, or an encoder-decoder or causal model whose answer counts
    by its first token. For RL4LMs' METEOR, add another part to the weighted sum.
    """

    model: str = Field(min_length=1)
    template: str = "{text}"  # the model's input; {prompt} stands for the prompt
    good: str = Field(default="good", min_length=1)
    bad: str = Field(default="bad", min_length=1)
    concept_penalty_coeff: float = Field(default=0.0, ge=0.0)
    tokens_per_batch: int = Field(default=4096, ge=1)

    @field_validator("template")
    @classmethod
    def _has_a_place_for_the_text(cls, template: str) -> str:
        if "{text}" not in template:
            raise ValueError('expected {text} in it, such as "{prompt} {text} Is it good or bad?"')
        return template

    def check(self) -> None:
        preference_kind(self.model)

    def load(self) -> None:
        self._model()

    def score(self, samples: Sequence[Sample]) -> list[float]:
        penalties = [1.0 + self.concept_penalty_coeff * self._num_missing(sample) for sample in samples]
        texts = [self._read(sample) for sample in samples]
        return [value / penalty for value, penalty in zip(self._model().score(texts), penalties, strict=True)]

    def _read(self, sample: Sample) -> str:
        # no str.format: texts and the template may hold braces
        before, _, after = self.template.partition("{text}")
        ends = [end.replace("{prompt}", sample.prompt) for end in (before, after)]
        return sample.text.join(ends)

    def _num_missing(self, sample: Sample) -> int:
        if not self.concept_penalty_coeff:
            return 0
        concepts = sample.meta.get("concepts")
        if not isinstance(concepts, Sequence) or isinstance(concepts, str):
            raise InputError(
                f"concept_penalty_coeff={self.concept_penalty_coeff:g} needs the meta data's concepts, a "
                f"list of words; got {concepts!r}. Set it to 0 for tasks without concepts"
            )
        return num_missing(sample.text, concepts)

    def _model(self) -> Any:
        from reward_servers.models.preference import (
            preference_model,  # imports torch and transformers: seconds
        )

        return preference_model(self.model, self.good, self.bad, self.tokens_per_batch)


def num_missing(text: str, concepts: Sequence[str]) -> int:
    """Return the number of concepts that occur nowhere in the text, not even within a word.

    >>> num_missing("The dogs ran.", ["dog", "run", "ball"])
    2
    """
    lowered = text.lower()
    return sum(concept.lower() not in lowered for concept in concepts)
