"""New tokenizers for new models: of whole words, or of bytes and frequent pieces of texts."""

from collections.abc import Iterable, Sequence
from typing import Any


def word_tokenizer(words: Iterable[str], unknown: str, **options: Any) -> Any:
    """Make a tokenizer of words between blanks; their ids are their places.

    Args:
        unknown: the word that stands for every other.
        options: of transformers' tokenizer, such as `eos_token="<eos>"`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(words)}
    bare = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=bare, **options)


def byte_tokenizer(
    special: Sequence[str], texts: Sequence[str] = (), size: int | None = None, **options: Any
) -> Any:
    """Make a tokenizer of special tokens and bytes; with `size`, also of pieces that are frequent in `texts`.

    Args:
        options: of transformers' tokenizer, such as `eos_token="<eos>"`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    ids = {word: number for number, word in enumerate([*special, *sorted(alphabet)])}
    bare = Tokenizer(models.BPE() if size else models.BPE(ids, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens(list(special))
    if size:
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        )
        bare.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bare, **options)
