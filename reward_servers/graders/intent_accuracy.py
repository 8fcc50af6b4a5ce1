"""Score of 1 if a classifier finds the intent of the sample's meta data in the answer, else 0."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.models.intent import Join, check_intent_model, hits


class IntentAccuracy(Grader):
    """Intent accuracy by a classifier of the last utterance and the answer, joined as in its training.

    `join=last_utterance` puts `<EOU>` between them; `last_utterance_unmarked` puts nothing there, as RL4LMs
    and OpenRL do. For RL4LMs' shaping, add METEOR as another part of the weighted sum.

    Example: `reward=[{name: intent_accuracy, weight: 0.5}, {name: meteor, weight: 0.5}]`
    """

    key: ClassVar[str] = "intent/accuracy"
    needs_meta: ClassVar[tuple[str, ...]] = ("intent",)

    model: str = Field(default="rajkumarrrk/roberta-daily-dialog-intent-classifier", min_length=1)
    join: Join = "last_utterance"  # joins utterances as `data.join` did in the classifier's training
    tokens_per_batch: int = Field(default=16_384, ge=1)

    def check(self) -> None:
        check_intent_model(self.model)

    def load(self) -> None:
        self._classifier()

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return hits(samples, self._classifier(), self.join)

    def _classifier(self) -> Any:
        from reward_servers.models.classifier import classifier  # imports torch and transformers: seconds

        return classifier(self.model, None, "end", self.tokens_per_batch)
