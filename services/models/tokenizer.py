"""Loading of a model's tokenizer."""

from typing import Any

from learner.settings import ModelSettings


def load_tokenizer(model: ModelSettings) -> Any:
    """Load the tokenizer that `model.tokenizer` names, or else the model's own."""
    from transformers import AutoTokenizer  # takes seconds

    if model.tokenizer is not None:  # model.revision applies only to the model
        return AutoTokenizer.from_pretrained(model.tokenizer, trust_remote_code=False)
    return AutoTokenizer.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
