"""Spans of a text that end together in two tokenizers.

the student   |The |an|swer| is| 4|<end>|        ends 4, 6, 10, 13, 15
the teacher   |The |answer |is |4|<end>|         ends 4, 11, 14, 15
spans         |The |answer is 4|<end>|           a log-probability each, by the teacher
"""

from collections.abc import Sequence
from typing import Any

from contracts.rollout import TeacherScores

BROKEN = "\ufffd"  # what a tokenizer writes for a part of a letter


def aligned(
    student_ends: Sequence[int | None],
    teacher_ends: Sequence[int | None],
    teacher_logprobs: Sequence[float],
) -> TeacherScores:
    """Return the teacher's log-probabilities of the spans, at the student's tokens that end them.

    Args:
        student_ends: characters before the end of each token; None where it ends within a letter.
        teacher_ends: the same of the teacher's tokens.

    >>> aligned([1, 2, 3], [1, None, 3], [-1.0, -0.5, -0.25])
    TeacherScores(logprobs=(-1.0, 0.0, -0.75), ends=(True, False, True), top_tokens=(), top_logprobs=())
    """
    sums, total = dict[int, float](), 0.0
    for end, logprob in zip(teacher_ends, teacher_logprobs, strict=True):
        total += logprob
        if end is not None:
            sums[end] = total
    places = {end: place for place, end in enumerate(student_ends) if end is not None}
    logprobs, ends, before = [0.0] * len(student_ends), [False] * len(student_ends), 0.0
    for end in sorted(sums.keys() & places.keys() - {0}):
        logprobs[places[end]], ends[places[end]] = sums[end] - before, True
        before = sums[end]
    return TeacherScores(tuple(logprobs), tuple(ends))


def ends_of_tokens(tokenizer: Any, tokens: Sequence[int]) -> tuple[str, list[int | None]]:
    """Return the text of sampled tokens, and the end of each token in the text.

    An end is None if the token ends within a character or is a special token. Some tokenizers decode a text's
    first token differently, so decode each token together with earlier ones.
    """
    text = _text(tokenizer, tokens)
    ends: list[int | None] = []
    first, read, length = 0, 0, 0  # first token to decode; tokens and characters so far
    for count in range(1, len(tokens) + 1):
        known, more = (_text(tokenizer, tokens[first:end]) for end in (read, count))
        added = more[len(known) :]
        is_end = bool(added) and not more.endswith(BROKEN) and text.startswith(added, length)
        if is_end:
            first, read, length = read, count, length + len(added)
        ends.append(length if is_end else None)
    return text, ends


def tokens_with_ends(tokenizer: Any, text: str) -> tuple[list[int], list[int | None]]:
    """Return a text's tokens, and each one's end in it; None where the next begins within the same letter."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    starts = [start for start, _ in offsets[1:]] + [len(text)]
    ends = [end if end <= start else None for (_, end), start in zip(offsets, starts, strict=True)]
    return list(encoded["input_ids"]), ends


def _text(tokenizer: Any, tokens: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text
