"""Places of characters among generated tokens, for scores of a text's spans.

tokens of "3", " 7", " 51", end  ─▶  their texts end behind characters 1, 3, 6, 6
the span 2 to 6                  ─▶  its last character, 5, is in the third token
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property

from contracts.rollout import Turn
from learner.settings import ModelSettings
from rollout_workers.engines.written_text import WrittenText
from services.models.tokenizer import load_tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # stands for a character of which a token has only some bytes
MOST_BYTES = 4  # of a character in UTF-8; what so many tokens don't complete is broken

Written = Callable[[Sequence[int]], str]


def token_ends(tokens: Sequence[int], written: Written) -> list[int]:
    """Return for each token how many characters of the text are complete with it.

    Only a few tokens are written at a time: a token's text may depend on the one before it. Bytes that are
    no character are counted up to three tokens late.

    >>> words = {0: "3", 1: " 7", 2: " 51", 9: ""}
    >>> token_ends([0, 1, 2, 9], lambda tokens: "".join(words[token] for token in tokens))
    [1, 3, 6, 6]
    """
    ends: list[int] = []
    first = done = count = 0  # the text of tokens[first:done] is known, and whole
    for number in range(1, len(tokens) + 1):
        if (known := _known(tokens, first, done, number, written)) > done:
            count += len(written(tokens[first:known])) - len(written(tokens[first:done]))
            first, done = done, known
        ends.append(count)
    if ends:
        ends[-1] = len(written(tokens))
    return ends


def _known(tokens: Sequence[int], first: int, done: int, number: int, written: Written) -> int:
    """Return up to which of `tokens[:number]` the text is final, as it is up to `done`.

    Among broken bytes it is final before the last ones that may still begin a character.
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
    """Finder of the token that holds a character of a turn's text; it loads the tokenizer when asked."""

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

    The text may be a part of what the tokens spell, as without a stop string. Where it is something else, as
    after post-processing, nobody knows the place: it is the turn's last token.
    """
    last = turn.num_tokens - 1
    begin = written(turn.tokens).find(turn.text)
    if begin < 0:
        return [last for _ in characters]
    ends = token_ends(turn.tokens, written)
    return [min(bisect_right(ends, begin + character), last) for character in characters]
