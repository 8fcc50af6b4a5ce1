"""Count tokens in texts with only a model's tokenizer."""

from typing import Any, Protocol

from contracts.errors import InputError
from services.models.files import ModelFiles


class CountsTokens(Protocol):
    def __call__(self, texts: list[str]) -> list[int]: ...


def token_counter(model: ModelFiles) -> CountsTokens:
    """Return a function that counts texts' tokens, including the model's special tokens.

    Raises:
        InputError: the tokenizer does not load, or belongs to a model with more tokens.
    """
    file = model.tokenizer_folder / "tokenizer.json"
    try:
        fast = _fast_tokenizer(str(file)) if file.exists() else _slow_tokenizer(str(model.tokenizer_folder))
    except Exception as error:  # the tokenizers' own errors are plain Exceptions
        raise InputError(f"the tokenizer in {model.tokenizer_folder} does not load: {error}") from None
    rows = model.config.get("vocab_size")
    if isinstance(rows, int) and fast.get_vocab_size() > rows:
        raise InputError(
            f"the tokenizer in {model.tokenizer_folder} has {fast.get_vocab_size()} tokens, the model "
            f"{rows}: it belongs to another model. Give the right one: model.tokenizer=FOLDER"
        )
    return lambda texts: [len(encoding.ids) for encoding in fast.encode_batch(texts)]


def _fast_tokenizer(file: str) -> Any:
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(file)
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def _slow_tokenizer(folder: str) -> Any:
    """Load a tokenizer from vocabulary files with transformers, whose import takes seconds."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
