"""Records that graders (rewards and metrics) get and return, and their protocols."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal, Protocol, TypeGuard

from contracts.conversations.thoughts import opening_mark
from contracts.records import by_position

GROUPS = "groups"  # value of `scores` of a reward that needs whole groups
PrefixUnit = Literal["words", "lines"]  # others: the reward gets the text so far, after each of these
Span = tuple[int, int, float]  # characters [start, end) of a text, and their reward


@by_position
@dataclass(frozen=True, slots=True)
class Grade:
    """A score beyond one number: by places of the text, with named values, with a comment.

    Example: `Grade(0.5, values={"format": 1.0}, comment="The sum is wrong.")`
    The same as JSON: `{"score": 0.5, "values": {"format": 1.0}, "comment": "The sum is wrong."}`

    The score is one of these, or None if the reward does not judge the text:

    - `0.5`: for the whole text
    - `[0, 0.5, 1]`: a number for each token that the model generated, or with `by="turn"` each answer
    - `[(0, 4, 0.5), (5, 9, 1)]`: spans of characters, from a start to before an end, with a score each
    """

    score: float | Sequence[float] | Sequence[Span] | None
    values: Mapping[str, float] = field(default_factory=dict)  # numbers to log, by name
    comment: str = ""  # text for people; cut at 10,000 characters
    by: Literal["token", "turn"] = "token"  # the places of a list of numbers

    @property
    def total(self) -> float | None:
        """Return the sum over all places.

        >>> Grade([(0, 4, 0.5), (5, 9, 1.0)]).total, Grade([0.25, 0.25]).total, Grade(2.0).total
        (1.5, 0.5, 2.0)
        """
        if not isinstance(self.score, Sequence):
            return self.score
        return fsum(part if isinstance(part, int | float) else part[2] for part in self.score)

    @property
    def unit(self) -> Literal["text", "token", "turn", "span"]:
        """Return the unit that each part of the score judges."""
        if not isinstance(self.score, Sequence):
            return "text"
        return "span" if are_spans(self.score) else self.by

    def times(self, weight: float) -> "Grade":
        """Return the score alone, times a weight.

        >>> Grade([(0, 4, 0.5)], comment="Well.").times(2.0)
        Grade(score=((0, 4, 1.0),), values={}, comment='', by='token')
        """
        if self.score is None or not isinstance(self.score, Sequence):
            return Grade(None if self.score is None else weight * self.score)
        if are_spans(self.score):
            return Grade(tuple((start, end, weight * score) for start, end, score in self.score))
        return Grade(tuple(weight * score for score in self.score), by=self.by)  # type: ignore[operator]

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON data, without empty fields.

        >>> Grade([0.5, 1.0], by="turn").as_json()
        {'score': [0.5, 1.0], 'by': 'turn'}
        """
        score = list(self.score) if isinstance(self.score, Sequence) else self.score
        more = {"values": dict(self.values), "comment": self.comment}
        by = {"by": self.by} if self.unit == "turn" else {}
        return {"score": score, **by, **{key: value for key, value in more.items() if value}}


def are_spans(score: Sequence[Any]) -> TypeGuard[Sequence[Span]]:
    """Return whether a list holds spans, not numbers; an empty list has no span, and earns nothing."""
    return not score or not isinstance(score[0], int | float)


# The score of one sample, or the reason why it has none; neither if the reward does not judge it.
# A number stays a number: only a grade has more.
Answer = tuple[float | Grade | None, str | None]


def as_json(score: float | Grade | None) -> Any:
    """Return a sample's score as JSON data."""
    return score.as_json() if isinstance(score, Grade) else score


# Kinds of values that a reward may return for a sample; a mapping is a grade as JSON.
Scored = float | Grade | Sequence[float] | Sequence[Span] | Mapping[str, Any] | None


@by_position
@dataclass(frozen=True, slots=True)
class Sample:
    """One finished text, with everything that a grader needs.

    Example: `Sample(text="6 8 9", prompt="3 5", references=(), meta={}, group="train/17")`

    Texts of one prompt share a `group`; "" means unknown. A call may get only some samples of a group, unless
    the reward needs whole groups.

    - training: "train/17", which counts prompts through the whole run and never repeats
    - evaluation: "validation/3", the prompt's index in its split, the same at every evaluation
    - annotation: "data/5", the prompt's index in the data set
    - `whetstone score`, HTTP: a name that the caller chose
    """

    text: str
    prompt: str = ""
    references: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    num_tokens: int | None = None  # tokens that the model generated; None: unknown
    # Mark with which the chat template opened the thought at the text's begin; "": none
    opened: str | None = None  # None: unknown
    turns: tuple[str, ...] = ()  # the model's answers, one line of the text each; (): one answer

    @property
    def response(self) -> str:
        """Return the text with the mark of the thought that the prompt opened, for graders of answers.

        >>> Sample("2 + 2 is 4.</think> 4", prompt="2 + 2? <think>").response
        '<think>2 + 2 is 4.</think> 4'
        """
        mark = (opening_mark(self.prompt) or "") if self.opened is None else self.opened
        return self.text if self.text.lstrip().startswith(mark) else mark + self.text


@by_position
@dataclass(frozen=True, slots=True)
class Term:
    """One reward in a weighted sum: its value after standardization, clipping and threshold, and its weight.

    Example: `Term(0.4, 0.5)`, which adds 0.2
    """

    value: float
    weight: float


@by_position
@dataclass(frozen=True, slots=True)
class Score:
    """The reward of one sample: the weighted sum, and each part's unweighted score by name.

    Example: `Score(total=0.7, parts={"rouge": 0.4, "length": 1.0})` for weights 0.5 and 0.5.
    A sample whose scoring failed has `total=None` and says why in `error`. `earned` is the total by its
    places, weighted; (): all of it at the end of the text. `grades` has the parts that were more than
    numbers, by name, unweighted. `terms` has what each part adds to the total.
    """

    total: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    earned: tuple[Grade, ...] = ()
    grades: Mapping[str, Grade] = field(default_factory=dict)
    terms: Mapping[str, Term] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric over a set of samples: one number for all, and one for each sample if that makes sense.

    Example: `MetricValue(corpus=0.5, rows=(0.0, 1.0))`; corpus BLEU has `rows=None`.
    """

    corpus: float
    rows: tuple[float, ...] | None = None


class Reward(Protocol):
    """Protocol of a reward: one score for each sample, in order, or None for a text that it does not judge.

    Example: `Length().score([Sample(text="a b c")]) == [3.0]`

    A score is a number, or a value that a `Grade` may hold. `score` may be a coroutine. With the class
    variable `scores = "groups"`, a call gets all samples of one prompt, and no others. With "words" or
    "lines" it gets the text so far after each of them, and a score's gain is earned there.
    """

    def score(self, samples: Sequence[Sample]) -> Sequence[Scored] | Awaitable[Sequence[Scored]]: ...


class Metric(Protocol):
    """Protocol of a metric: values over the whole corpus, under keys such as `lexical/rouge_rouge1`.

    In an evaluation of a model, `compute(samples, split, model)` also gets the split's name and the model.

    Example: `Dates().compute([Sample(text="on 2024-01-31")])
    == {"synthetic/dates_in_text": MetricValue(corpus=1.0, rows=(1.0,))}`
    """

    def compute(self, samples: Sequence[Sample]) -> Mapping[str, MetricValue]: ...


class FindsAnswers(Protocol):
    """Optional method of a reward or a metric: the answer in a text, for a majority vote.

    Equal answers must be equal texts: "0.5" and "1/2" should have one form. None: the text has no answer.

    Example: `Math().answer("Half of it, so \\boxed{1/2}.") == "1/2"`
    """

    def answer(self, text: str) -> str | None: ...
