"""Value of a sequence classifier for prompt and text: a label's probability, or a reward model's output."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from contracts.scores import Sample
from contracts.settings import Strings
from reward_servers.graders.grader import Grader
from reward_servers.models.checkpoint import check_label
from reward_servers.text.templates import TEXT_PLACES, filled, places_of
from reward_servers.text.whole_text import whole_text


class LearnedReward(Grader):
    """A model that loads as `AutoModelForSequenceClassification`, by its folder or its name on the hub.

    A text that is too long keeps its end. For a single label, as in reward models, the probability is the
    sigmoid of its value; `output=logit` gives the value itself.

    Example: a critic of pairs, and a reward model that marks each turn of a conversation.

        LearnedReward(model="critic", label_ix=0, template="{knowledge}", second="{text}")
        LearnedReward(model="judge", template="{turns}A: {text}", turn_templates=("Q: {turn} ", "A: {turn} "))
    """

    key: ClassVar[str] = "semantic/learned_automodel_metric"

    model: str = Field(min_length=1)
    label_ix: int | None = Field(default=None, ge=0)  # the label's index; needless for a model with one label
    include_prompt: bool = True
    # The model's input, see `reward_servers/text/templates.py`; overrides include_prompt.
    template: str | None = None
    second: str | None = None  # template of a second text, for classifiers of pairs
    turn_templates: Strings = ()  # templates of the {turns}, with {turn} in each
    output: Literal["probability", "logit"] = "probability"
    max_length: int | None = Field(default=None, ge=1)  # tokens; None: as many as the model takes
    tokens_per_batch: int = Field(default=16_384, ge=1)  # lower it where the GPU's memory runs out

    @model_validator(mode="after")
    def _templates_fit(self) -> Self:
        used = set().union(*(places_of(template) for template in (self.template, self.second) if template))
        if self.template is None and (self.second is not None or self.turn_templates):
            raise ValueError("second and turn_templates need a template; got none")
        if self.template is not None and not used & TEXT_PLACES:
            raise ValueError("expected {text} in template or in second, such as '{prompt} {text}'")
        if ("turns" in used) != bool(self.turn_templates):
            raise ValueError("{turns} in a template and turn_templates need each other")
        if not all("{turn}" in template for template in self.turn_templates):
            raise ValueError("expected {turn} in each of turn_templates")
        return self

    def check(self) -> None:
        check_label(self.model, self.label_ix)

    def load(self) -> None:
        self._classifier()

    def score(self, samples: Sequence[Sample]) -> list[float]:
        judge, (texts, seconds) = self._classifier(), self._read(samples)
        judged = judge.logits if self.output == "logit" else judge.probabilities
        values_NL = judged(texts, seconds)
        return [float(value) for value in values_NL[:, self.label_ix or 0]]

    def _read(self, samples: Sequence[Sample]) -> tuple[list[str], list[str] | None]:
        if self.template is None:
            return [whole_text(sample, self.include_prompt) for sample in samples], None
        texts, seconds = (
            None
            if template is None
            else [filled(template, sample, self.turn_templates) for sample in samples]
            for template in (self.template, self.second)
        )
        return texts or [], seconds

    def _classifier(self) -> Any:
        from reward_servers.models.classifier import classifier  # imports torch and transformers: seconds

        return classifier(self.model, self.max_length, "end", self.tokens_per_batch)
