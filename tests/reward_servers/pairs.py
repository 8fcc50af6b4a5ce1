"""Texts with references for the parity tests: made here, and real ones where a folder of them is there."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from contracts.scores import Sample

# A folder of real samples beside the repository.
REAL = Path(__file__).parents[3] / "shared" / "data"

SUBJECTS = [
    *("the old man", "two dogs", "a woman in a red hat", "Mr. Smith", "they", "my neighbour's children"),
    *("nobody", "I", "The best players"),
]
VERBS = [
    *("ran across", "was buying", "bought", "didn't like", "slowly walked through", "has never seen"),
    *("threw", "is gonna purchase"),
]
OBJECTS = [
    *("the market", "an apple", "3.5 kilos of flour", "the best house", "it", "a frisbee (blue)"),
    *("his wife's car", "the shop"),
]
ENDS = [". ", "! ", "? ", ", and ", "... ", ".\n", " because "]


@cache
def made(count: int = 200) -> tuple[Sample, ...]:
    """Sentences of few parts, so that pairs have much in common; one to three references each."""
    rng = random.Random(4)
    return tuple(
        Sample(_text(rng), references=tuple(_text(rng) for _ in range(rng.randint(1, 3))))
        for _ in range(count)
    )


ODD = [
    *(
        "word",
        "Yes I do",
        "a man\u00a0is riding a horse",
        "it's\u00a0raining here now",
        "ONE two Three four five",
    ),
    *("\U0001f600 smile", "don\u2019t \u201cgo\u201d now\u2026 ok \u2014 yes", "\ufeffhello there you all"),
    *(
        "a\u200bb c d e",
        "x\u3000y z w v",
        "Mr. Smith went to U.S. today. He ran.",
        "cannot gonna wanna",
        "...",
    ),
    *(
        "\u00c0\u00c9\u00ce \u00f5\u00fc stra\u00dfe STRASSE",
        "\u65e5\u672c\u8a9e \u306e",
        "1,000.50 $5 100% a/b #tag",
    ),
    *("''quoted'' `tick` \"x\"", "tab\tsep words here", "!!!", "<br /> html <b>x</b>", "the the the the"),
    *("The quick brown fox jumps over the lazy dog.", "the quick brown fox jumps over the lazy dog"),
]


@cache
def odd() -> tuple[Sample, ...]:
    """Each with each: one word, no letter, blanks and quotes of all kinds, letters of other alphabets."""
    return tuple(
        Sample(text, references=(reference, ODD[(place + 5) % len(ODD)])[: 1 + place % 2])
        for text in ("", *ODD)
        for place, reference in enumerate(ODD)
    )


@cache
def real() -> tuple[Sample, ...]:
    """100 of CommonGen with several references, 100 turns of dialogue with the next, 50 pairs of answers."""
    captions = [row["references"] for row in _rows("common_gen", "test")]
    dialogues = [row["dialog"] for row in _rows("daily_dialog", "test")]
    answers = [(_answer(row["chosen"]), _answer(row["rejected"])) for row in _rows("hh_rlhf", "test")]
    return (
        *(Sample(texts[0], references=tuple(texts[1:4]) or (texts[0],)) for texts in captions[:100]),
        *(Sample(turns[0], references=(turns[1],)) for turns in dialogues[:100]),
        *(Sample(chosen, references=(rejected,)) for chosen, rejected in answers[:50]),
    )


def shortened(samples: tuple[Sample, ...], num_words: int) -> list[Sample]:
    """Return the samples with shorter texts, for graders that take seconds on long ones."""
    return [
        Sample(
            _cut(sample.text, num_words),
            references=tuple(_cut(reference, num_words) for reference in sample.references),
        )
        for sample in samples
    ]


def _cut(text: str, num_words: int) -> str:
    return " ".join(text.split()[:num_words])


def _text(rng: random.Random) -> str:
    return "".join(
        " ".join(map(rng.choice, (SUBJECTS, VERBS, OBJECTS))) + rng.choice(ENDS)
        for _ in range(rng.randint(1, 3))
    )


def _rows(name: str, split: str) -> list[dict[str, Any]]:
    lines = (REAL / name / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _answer(conversation: str) -> str:
    return conversation.rpartition("\n\nAssistant:")[2].strip()
