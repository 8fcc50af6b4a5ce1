"""Limits of a classifier's input, the same for training and serving: its window, and no padding."""

from typing import Any

from contracts.errors import InputError

NO_LIMIT = 1_000_000  # tokenizers without a limit give 10^30
FALLBACK_WINDOW = 4096  # window of models without a limit of positions
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


def check_pooling(lm: Any, model: str) -> None:
    """Refuse a classifier that judges a text at its row's last position, as XLNet does.

    In a batch that position is padding, so a text's score would depend on the other texts.

    Raises:
        InputError: names the model and its kind.
    """
    summary = getattr(lm, "sequence_summary", None)
    if getattr(summary, "summary_type", None) == "last":
        raise InputError(
            f"model={model} is of the kind {lm.config.model_type}, whose classifier reads the last position "
            f"(summary_type=last), which is padding in a batch; expected a classifier that reads a text's "
            f"first or last token, such as a BERT, RoBERTa or GPT-2: model=FOLDER or NAME"
        )
