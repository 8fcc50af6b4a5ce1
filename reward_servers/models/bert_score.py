"""BERTScore by its authors' library, the match of two texts' words in a model's embeddings.

Zhang et al., "BERTScore: Evaluating Text Generation with BERT" (ICLR 2020).
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.models.checkpoint import read_config
from reward_servers.models.token_batches import batches_by_length
from reward_servers.text.references import references_of

CHARACTERS_PER_TOKEN = 3  # a safe guess, for the size of batches alone
# The library's choice by language, from its authors' published figures.
MODELS = {
    "en": "roberta-large",
    "en-sci": "allenai/scibert_scivocab_uncased",
    "tr": "dbmdz/bert-base-turkish-cased",
    "zh": "bert-base-chinese",
}
MULTILINGUAL = "bert-base-multilingual-cased"


def model_for(language: str) -> str:
    """Return the name of the model for a language.

    >>> model_for("en"), model_for("de")
    ('roberta-large', 'bert-base-multilingual-cased')
    """
    return MODELS.get(language.lower(), MULTILINGUAL)


def check_model(model: str, num_layers: int | None) -> None:
    """Refuse a model that the library could not use or would misread.

    Raises:
        InputError: the model or layer is unknown, or a folder lacks `num_layers`.
    """
    config = read_config(model)
    depth = config.get("num_hidden_layers") or config.get("n_layer") or config.get("num_layers")
    is_folder = Path(model).expanduser().is_dir()
    if is_folder and num_layers is None:
        raise InputError(
            f"the library knows the best layer only for models of the hub, and model={model} is a folder; "
            f"expected num_layers=, 1 to {depth}"
        )
    if num_layers is not None and isinstance(depth, int) and num_layers > depth:
        raise InputError(f"num_layers={num_layers}, but the model has {depth}")
    if is_folder and "t5" in model and "t5" not in str(config.get("model_type")):
        raise InputError(
            f"model={model}: the library expects a T5 model in every path with 't5', but the folder has a "
            f"{config.get('model_type')}; make a link to it with another name"
        )


class BertScore:
    """A scorer of each sample's F1 against its best reference, 0 to 1; 0 if either is blank.

    Example: `BertScore("folder", 9, 16384).score([Sample("a cat", references=("a cat",))])` is [1.0] or so.
    """

    def __init__(self, model: str, num_layers: int | None, tokens_per_batch: int) -> None:
        from bert_score import BERTScorer  # imports torch, transformers, pandas: seconds

        from contracts.windows import window_of

        try:
            self._scorer: Any = BERTScorer(model_type=model, num_layers=num_layers)
        except Exception as error:  # the library checks little and raises anything
            raise InputError(f"model={model} does not load: {type(error).__name__}: {error}") from error
        tokenizer = self._scorer._tokenizer
        self._window = tokenizer.model_max_length = window_of(tokenizer, self._scorer._model.config)
        self._tokens_per_batch = tokens_per_batch

    def score(self, samples: Sequence[Sample]) -> list[float]:
        from reward_servers.models.transformer import encodable

        pairs = [
            (place, sample.text, ref)
            for place, sample in enumerate(samples)
            for ref in references_of(sample, "BERTScore")
        ]
        pairs = [
            (place, encodable(text), encodable(reference))
            for place, text, reference in pairs
            if text.strip() and reference.strip()
        ]
        best = [0.0] * len(samples)
        lengths = [self._guess(max(len(text), len(reference))) for _, text, reference in pairs]
        for batch in batches_by_length(lengths, self._tokens_per_batch):
            chosen = [pairs[place] for place in batch]
            f1 = self._scorer.score(
                [text for _, text, _ in chosen], [ref for _, _, ref in chosen], batch_size=len(chosen)
            )[2]
            for (place, _, _), value in zip(chosen, f1.tolist(), strict=True):
                best[place] = max(best[place], value)
        return best

    def _guess(self, num_characters: int) -> int:
        return min(self._window, num_characters // CHARACTERS_PER_TOKEN + 3)


@cache
def scorer(model: str, num_layers: int | None, tokens_per_batch: int) -> BertScore:
    """Return the scorer, loaded once for each process."""
    return BertScore(model, num_layers, tokens_per_batch)
