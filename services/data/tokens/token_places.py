"""Places of characters among generated tokens, for scores of a text's spans.

tokens of "3", " 7", " 51", end  ─▶  their texts end after characters 1, 3, 6, 6
the span 2 to 6                  ─▶  the third token holds its last character, 5
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property

from contracts.rollout import Turn
from learner.settings import ModelSettings
from rollout_workers.engines.written_text import WrittenText
from services.models.tokenizer import load_tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from only some bytes of a character
MOST_BYTES = 4  # a UTF-8 character has at most 4 bytes; one that 4 tokens leave incomplete is broken

Written = Callable[[Sequence[int]], str]


def token_ends(tokens: Sequence[int], written: Written) -> list[int]:
    """Return for each token how many characters of the text are complete with it.

    Decode only a few tokens at a time, because a token's text may depend on the previous one. Bytes that are
    no character are counted up to three tokens late.

    >>> words = {0: "3", 1: " 7", 2: " 51", 9: ""}
    >>> token_ends([0, 1, 2, 9], lambda tokens: "".join(words[token] for token in tokens))
    [1, 3, 6, 6]
    """
    ends: list[int] = []
    first = done = count = 0  # the text of tokens[first:done] is known and complete
    for number in range(1, len(tokens) + 1):
        if (known := _known(tokens, first, done, number, written)) > done:
            count += len(written(tokens[first:known])) - len(written(tokens[first:done]))
            first, done = done, known
        ends.append(count)
    if ends:
        ends[-1] = len(written(tokens))
    return ends


def _known(tokens: Sequence[int], first: int, done: int, number: int, written: Written) -> int:
    """Return how many of `tokens[:number]` have a final text; for `done` tokens the text is final already.

    In broken bytes, the text is final before the last bytes that may still begin a character.
    """
    now = written(tokens[first:number])
    if not now.endswith(UNFINISHED):
        return number
    if number - done < MOST_BYTES:
        return done
    for place in range(number - 1, done, -1):
        if written(tokens[first:place]) + written(tokens[place:number]) == now:
            return place
    return number


class TokenPlaces:
    """Finder of the token that holds a character of a turn's text. It loads the tokenizer late."""

    def __init__(self, model: ModelSettings) -> None:
        self._model = model

    @cached_property
    def _written(self) -> WrittenText:
        return WrittenText(load_tokenizer(self._model))

    def __call__(self, turn: Turn, characters: Sequence[int]) -> list[int]:
        """Return for each place in the turn's text the index of the token that completes its character."""
        return places(turn, characters, self._written)


def places(turn: Turn, characters: Sequence[int], written: Written) -> list[int]:
    """Return for each place in the turn's text the index of its token.

    The text may be a part of the tokens' text, as without a stop string. If it is not, as after
    post-processing, return the turn's last token.
    """
    last = turn.num_tokens - 1
    begin = written(turn.tokens).find(turn.text)
    if begin < 0:
        return [last for _ in characters]
    ends = token_ends(turn.tokens, written)
    return [min(bisect_right(ends, begin + character), last) for character in characters]
