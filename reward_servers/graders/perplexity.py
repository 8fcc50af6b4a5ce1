"""Perplexity of the texts, or of their references, under a causal language model."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from contracts.adapters.merging import whole_model
from contracts.errors import InputError
from contracts.scores import MetricValue, Sample
from contracts.settings import Settings
from reward_servers.models.checkpoint import read_config
from reward_servers.models.perplexity import JOINT, perplexity
from reward_servers.text.whole_text import whole_text


class Perplexity(Settings):
    """Perplexity: exp of the mean negative log-likelihood of a token, over all tokens of all texts.

    With `joined` the texts form one long text, separated by blank lines, as for RL4LMs and GPT-2's published
    figures: then a window spans several texts, and there are no rows.
    """

    model: str = Field(min_length=1)
    of: Literal["generations", "references", "prompt+generation"] = "generations"
    stride: int = Field(default=512, ge=1)  # tokens between two windows, less than the model's window
    joined: bool = False
    tokens_per_batch: int = Field(default=4096, ge=1)

    def check(self) -> None:
        config = read_config(whole_model(self.model, where="model"))
        if config.get("is_encoder_decoder"):
            raise InputError(
                f"model={self.model} is an encoder-decoder ({config.get('model_type')}), which has no "
                f"likelihood of a text alone; expected a causal language model"
            )

    def load(self) -> None:
        self._language_model()

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        texts = [text for sample in samples for text in self._texts(sample)]
        if self.joined:
            nlls = self._language_model().token_nlls([JOINT.join(texts)], self.stride, starts=False)
            return {"fluency_metrics/perplexity": MetricValue(corpus=perplexity(nlls).corpus)}
        value = perplexity(self._language_model().token_nlls(texts, self.stride))
        rows = value.rows if len(texts) == len(samples) else None  # several references make no row
        return {"fluency_metrics/perplexity": MetricValue(corpus=value.corpus, rows=rows)}

    def _texts(self, sample: Sample) -> Sequence[str]:
        if self.of != "references":
            return [whole_text(sample, self.of == "prompt+generation")]
        if not sample.references:
            raise InputError("of=references needs references, and this sample has none")
        return sample.references

    def _language_model(self) -> Any:
        from reward_servers.models.language_model import (
            language_model,  # imports torch and transformers: seconds
        )

        return language_model(self.model, self.tokens_per_batch)
