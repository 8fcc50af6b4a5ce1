"""How many tokens a classifier reads at once: the same answer for whoever trains it and whoever serves it."""

from typing import Any

NO_LIMIT = 1_000_000  # tokenizers without a limit of their own say 10^30
FALLBACK_WINDOW = 4096  # of models whose positions have no end
ROBERTA_LIKE = ("roberta", "xlm-roberta", "camembert")  # their positions begin behind the padding's


def window_of(tokenizer: Any, config: Any) -> int:
    """By the tokenizer or, if that says nothing, by the model's positions."""
    if tokenizer.model_max_length < NO_LIMIT:
        return int(tokenizer.model_max_length)
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if positions is None:
        return FALLBACK_WINDOW
    taken = (config.pad_token_id or 0) + 1 if config.model_type in ROBERTA_LIKE else 0
    return int(positions) - taken
