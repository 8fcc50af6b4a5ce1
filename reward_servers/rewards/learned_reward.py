"""What a sequence classifier says of prompt and text: a label's probability, or a reward model's value."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers.models.checkpoint import check_label
from reward_servers.text.whole_text import whole_text


class LearnedReward(Settings):
    """Any model that loads as `AutoModelForSequenceClassification`, by its folder or its name on the hub.

    Of a text that is too long the end is kept. With a single label, as reward models have it, the
    probability is the sigmoid of its value; `output=logit` gives the value itself.
    """

    model: str = Field(min_length=1)
    label_ix: int | None = Field(default=None, ge=0)  # not needed where the model has one label alone
    include_prompt: bool = True
    output: Literal["probability", "logit"] = "probability"
    max_length: int | None = Field(default=None, ge=1)  # tokens; None: as many as the model takes
    tokens_per_batch: int = Field(default=16_384, ge=1)  # lower it where the GPU's memory runs out

    def check(self) -> None:
        check_label(self.model, self.label_ix)

    def load(self) -> None:
        self._classifier()

    def score(self, samples: Sequence[Sample]) -> list[float]:
        texts = [whole_text(sample, self.include_prompt) for sample in samples]
        judge = self._classifier()
        values_NL = judge.logits(texts) if self.output == "logit" else judge.probabilities(texts)
        return [float(value) for value in values_NL[:, self.label_ix or 0]]

    def _classifier(self) -> Any:
        from reward_servers.models.classifier import classifier  # imports torch and transformers: seconds

        return classifier(self.model, self.max_length, "end", self.tokens_per_batch)
