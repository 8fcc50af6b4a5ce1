"""The number of tokens that a classifier reads at once, the same for training and serving."""

from typing import Any

NO_LIMIT = 1_000_000  # tokenizers without a limit of their own say 10^30
FALLBACK_WINDOW = 4096  # for models without a limit of positions
ROBERTA_LIKE = ("roberta", "xlm-roberta", "camembert")  # their positions begin after the padding's


def window_of(tokenizer: Any, config: Any) -> int:
    """Return the tokenizer's limit or, if it has none, the number of the model's positions."""
    if tokenizer.model_max_length < NO_LIMIT:
        return int(tokenizer.model_max_length)
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if positions is None:
        return FALLBACK_WINDOW
    taken = (config.pad_token_id or 0) + 1 if config.model_type in ROBERTA_LIKE else 0
    return int(positions) - taken
