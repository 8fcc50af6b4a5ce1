"""BERTScore F1 of the text against its best reference, by the library of its authors (0 to 1)."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from contracts.scores import Sample
from reward_servers.graders.grader import Grader
from reward_servers.models import bert_score


class BertScore(Grader):
    """BERTScore without rescaling; the language decides model and layer unless they are given."""

    key: ClassVar[str] = "semantic/bert_score"
    needs_references: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("bert-score",)

    language: str = Field(default="en", min_length=2)
    model: str | None = Field(default=None, min_length=1)  # a folder or a name on the hub
    num_layers: int | None = Field(default=None, ge=1)  # needed with a folder
    tokens_per_batch: int = Field(default=16_384, ge=1)

    def check(self) -> None:
        bert_score.check_model(self._model_name, self.num_layers)

    def load(self) -> None:
        self._scorer()

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return self._scorer().score(samples)

    @property
    def _model_name(self) -> str:
        return self.model or bert_score.model_for(self.language)

    def _scorer(self) -> bert_score.BertScore:
        return bert_score.scorer(self._model_name, self.num_layers, self.tokens_per_batch)
