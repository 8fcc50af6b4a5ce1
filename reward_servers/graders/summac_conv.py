"""Mean SummaC consistency of summaries with their documents (0 to 1), by a trained head."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from contracts.scores import MetricValue, Sample
from contracts.settings import Settings, Strings
from reward_servers.graders.grader import mean_of
from reward_servers.graders.summac_zs import document_of
from reward_servers.models.nli import check_nli_model, judge
from reward_servers.models.summac import Bins, ConvolutionHead, Granularity, Operation, head, images


class SummacConv(Settings):
    """SummaC's trained head; the defaults fit the published weights, and without weights there is no head.

    RL4LMs' settings, models [mnli, anli, vitc] and bins even50, need weights that were trained for them.
    """

    weights: str = Field(min_length=1)  # .safetensors or .npz
    models: Strings = Field(default=("vitc",), min_length=1)
    bins: Bins = "percentile"
    granularity: Granularity = "sentence"
    nli_labels: Literal["e", "c", "n", "ec", "en", "cn", "ecn"] = "e"
    agg: Operation = "mean"
    prompt_prefix: str = ""
    prompt_suffix: str = ""
    tokens_per_batch: int = Field(default=16_384, ge=1)

    def check(self) -> None:
        self._head()
        for model in self.models:
            check_nli_model(model)

    def load(self) -> None:
        for model in self.models:
            judge(model, self.tokens_per_batch)

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        pairs = [
            (document_of(sample, self.prompt_prefix, self.prompt_suffix), sample.text) for sample in samples
        ]
        stacks = zip(
            *(
                images(pairs, self.granularity, judge(model, self.tokens_per_batch).judge)
                for model in self.models
            ),
            strict=True,
        )
        return {"consistency/summacconv": mean_of([self._head().score(stack) for stack in stacks])}

    def _head(self) -> ConvolutionHead:
        return head(self.weights, self.bins, self.nli_labels, len(self.models), self.agg)
