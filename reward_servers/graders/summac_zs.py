"""SummaC zero-shot consistency of the text with the prompt's document, by an inference model (-1 to 1)."""

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.models.nli import check_nli_model, judge
from reward_servers.models.summac import Granularity, Operation, images, zero_shot


class SummacZs(Grader):
    """SummaC against the prompt without the task's `prompt_prefix` and `prompt_suffix` as the document.

    Laban et al., "SummaC" (TACL 2022). The model is one of SummaC's short names (mnli, anli, vitc …), or the
    folder or hub name of a model whose three labels name entailment and contradiction.
    """

    key: ClassVar[str] = "consistency/summaczs"

    model: str = Field(default="mnli", min_length=1)
    granularity: Granularity = "paragraph"
    op1: Operation = "max"
    op2: Operation = "mean"
    use_ent: bool = True
    use_con: bool = True
    prompt_prefix: str = ""
    prompt_suffix: str = ""
    tokens_per_batch: int = Field(default=16_384, ge=1)

    @model_validator(mode="after")
    def _check_use(self) -> Self:
        if not self.use_ent and not self.use_con:
            raise ValueError("use_ent and use_con are both false; expected one of them to be true")
        return self

    def check(self) -> None:
        check_nli_model(self.model)

    def load(self) -> None:
        judge(self.model, self.tokens_per_batch)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        pairs = [
            (document_of(sample, self.prompt_prefix, self.prompt_suffix), sample.text) for sample in samples
        ]
        pair_images = images(pairs, self.granularity, judge(self.model, self.tokens_per_batch).judge)
        return [zero_shot(image, self.op1, self.op2, self.use_ent, self.use_con) for image in pair_images]


def document_of(sample: Sample, prefix: str, suffix: str) -> str:
    """Return the prompt without its prefix and suffix.

    >>> document_of(Sample("s", prompt="Summarize: It rains. TL;DR:"), "Summarize: ", " TL;DR:")
    'It rains.'
    """
    return sample.prompt.removeprefix(prefix).removesuffix(suffix)
