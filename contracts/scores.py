"""The records that graders (rewards and metrics) get and return, and the protocols of both."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.conversations.thoughts import opening_mark
from contracts.records import by_position

GROUPS = "groups"  # value of `scores` with which a reward asks for whole groups
# The score of one sample, or the reason why it has none; neither where the reward says nothing about it.
Answer = tuple[float | None, str | None]


@by_position
@dataclass(frozen=True, slots=True)
class Sample:
    """One finished text, with everything that a grader judges it by.

    Example: `Sample(text="6 8 9", prompt="3 5", references=(), meta={}, group="train/17")`

    Texts of one prompt share a `group`; "" means unknown. A call may get only some samples of a group, unless
    the reward asks for whole groups.

    - training: "train/17", which counts prompts through the whole run and never repeats
    - evaluation: "validation/3", the prompt's index in its split, the same at every evaluation
    - annotation: "data/5", the prompt's index in the data set
    - `whetstone score`, HTTP: the caller's own name
    """

    text: str
    prompt: str = ""
    references: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    num_tokens: int | None = None  # that the model generated; None: not known
    # The mark with which the chat template opens a thought, in which the text begins; "": none
    opened: str | None = None  # None: not known

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
class Score:
    """The reward of one sample: the weighted sum, and each part's unweighted score by name.

    Example: `Score(total=0.7, parts={"rouge": 0.4, "length": 1.0})` for weights 0.5 and 0.5.
    A sample whose scoring failed has `total=None` and says why in `error`.
    """

    total: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric over a set of samples: one number for all, and one for each sample where that makes sense.

    Example: `MetricValue(corpus=0.5, rows=(0.0, 1.0))`; corpus BLEU has `rows=None`.
    """

    corpus: float
    rows: tuple[float, ...] | None = None


class Reward(Protocol):
    """A reward: it returns one score for each sample, in order; None: the reward says nothing about it.

    Example: `Length().score([Sample(text="a b c")]) == [3.0]`

    `score` may be a coroutine. With the class variable `scores = "groups"`, a call gets all samples of one
    prompt, and no others.
    """

    def score(
        self, samples: Sequence[Sample]
    ) -> Sequence[float | None] | Awaitable[Sequence[float | None]]: ...


class Metric(Protocol):
    """A metric: it returns values over the whole corpus, under keys such as `lexical/rouge_rouge1`.

    In an evaluation of a model, `compute(samples, split, model)` also gets the split's name and the model.

    Example: `Dates().compute([Sample(text="on 2024-01-31")])
    == {"synthetic/dates_in_text": MetricValue(corpus=1.0, rows=(1.0,))}`
    """

    def compute(self, samples: Sequence[Sample]) -> Mapping[str, MetricValue]: ...


class FindsAnswers(Protocol):
    """Optional method of a reward or a metric: the answer that a text gives, for a majority vote.

    Equal answers are equal texts: "0.5" and "1/2" should come back as one. None: the text has no answer.

    Example: `Math().answer("Half of it, so \\boxed{1/2}.") == "1/2"`
    """

    def answer(self, text: str) -> str | None: ...
