"""1 where a classifier finds in the answer the intent that the sample's meta data asks for, else 0."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.models.intent import check_intent_model, hits


class IntentAccuracy(Settings):
    """RL4LMs' shaping by METEOR is a part of its own in a weighted sum, so that each sample gets its own.

    Example: `reward=[{name: intent_accuracy, weight: 0.5}, {name: meteor, weight: 0.5}]`
    """

    needs_meta: ClassVar[tuple[str, ...]] = ("intent",)

    model: str = Field(default="rajkumarrrk/roberta-daily-dialog-intent-classifier", min_length=1)
    tokens_per_batch: int = Field(default=16_384, ge=1)

    def check(self) -> None:
        check_intent_model(self.model)

    def load(self) -> None:
        self._classifier()

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return hits(samples, self._classifier())

    def _classifier(self) -> Any:
        from reward_servers.models.classifier import classifier  # imports torch and transformers: seconds

        return classifier(self.model, None, "end", self.tokens_per_batch)
