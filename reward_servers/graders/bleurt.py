"""BLEURT of the text against its best reference, by a checkpoint converted to transformers."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.models.checkpoint import labels_of, read_config
from reward_servers.text.references import printed_references, references_of


class Bleurt(Grader):
    """BLEURT by a checkpoint that reads (reference, text).

    Sellam et al., "BLEURT: Learning Robust Metrics for Text Generation" (ACL 2020). Google's checkpoints are
    TensorFlow's; this needs one that loads as `AutoModelForSequenceClassification` with a single label.
    RL4LMs compares with the printed list of all references: `references=printed`.
    """

    key: ClassVar[str] = "semantic/bleurt"
    needs_references: ClassVar[bool] = True

    model: str = Field(min_length=1)
    references: Literal["best", "printed"] = "best"
    tokens_per_batch: int = Field(default=16_384, ge=1)

    def check(self) -> None:
        labels = labels_of(read_config(self.model))
        if len(labels) != 1:
            raise InputError(
                f"model={self.model} has {len(labels)} labels: {', '.join(labels)}; BLEURT is one number, so "
                f"expected one label: a BLEURT checkpoint that was converted to transformers"
            )

    def load(self) -> None:
        self._classifier()

    def score(self, samples: Sequence[Sample]) -> list[float]:
        targets = [self._targets(sample) for sample in samples]
        texts = [sample.text for sample, references in zip(samples, targets, strict=True) for _ in references]
        flat = [target for references in targets for target in references]
        values = iter(self._classifier().logits(flat, texts)[:, 0].tolist())
        return [max(next(values) for _ in references) for references in targets]

    def _targets(self, sample: Sample) -> tuple[str, ...]:
        if self.references == "printed":
            return (printed_references(sample, "BLEURT"),)
        return references_of(sample, "BLEURT")

    def _classifier(self) -> Any:
        from reward_servers.models.classifier import classifier  # imports torch and transformers: seconds

        return classifier(self.model, None, "begin", self.tokens_per_batch)
