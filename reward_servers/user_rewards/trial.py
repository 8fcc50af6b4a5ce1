"""Trial calls of a user's graders on two texts, before anything depends on their answers.

    prompts ─▶ Trial ─┬─▶ train, evaluate, annotate, serve: one replica, as soon as all are deployed
                      ├─▶ score, annotate executor=here: this process
                      └─▶ plan: another process, which is ended (reward_servers/user_rewards/apart.py)

Only the user's classes and judges are tried, because other built-in graders have tests. Any wrong return
value is refused. An exception may be due to the made-up texts, so a reward is refused only if it scores none
of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.scores import Metric, Sample
from reward_servers.reasons import RAISED, RaisedElsewhere, reason_of, traceback_of
from reward_servers.settings import Part
from reward_servers.user_rewards.returned import Misshapen, scores_of, values_of

TRIED = ("judge", "judge_group")  # built-in rewards whose address, key and model may be wrong
TEXTS = ("The answer is 42.", "I am not sure. Perhaps it is 7?")


@dataclass(frozen=True, slots=True)
class Trial:
    """The samples of a grader's trial.

    Example: `Trial((Sample("The answer is 42.", prompt="What is 6 · 7?"),), are_real=True)`
    """

    samples: tuple[Sample, ...]
    are_real: bool  # prompts, references and meta data come from the run; only texts may be made up
    # Samples for graders of a part of a mixture, by kind and label; other graders take `samples`
    of_graders: Mapping[tuple[str, str], tuple[Sample, ...]] = field(default_factory=dict)

    def for_grader(self, kind: str, label: str) -> "Trial":
        """Return the trial of one grader."""
        return Trial(self.of_graders.get((kind, label), self.samples), self.are_real)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A trial's result: a reason to refuse the grader, or a warning; "" for none."""

    refusal: str = ""
    warning: str = ""
    raised: str = ""  # the traceback of the grader's exception

    def check(self) -> None:
        """Refuse the grader if its trial did.

        Raises:
            InputError: the grader is refused; the cause is the grader's exception.
        """
        if self.refusal:
            raise InputError(self.refusal) from (RaisedElsewhere(self.raised) if self.raised else None)


def as_generated(sample: Sample) -> Sample:
    """Return the sample as if a model had written its text in one answer, with a token for each word.

    >>> as_generated(Sample("It is 42.")).num_tokens, as_generated(Sample("")).num_tokens
    (3, 1)
    """
    return replace(sample, num_tokens=max(1, len(sample.text.split())), turns=(sample.text,))


# For commands without prompts.
MADE_UP = Trial(
    tuple(as_generated(Sample(text, "What is the answer?", (TEXTS[0],), {}, "trial/0")) for text in TEXTS),
    are_real=False,
)


def trial_of(prompts: Iterable[Prompt], *, generated: bool = True) -> Trial:
    """Make a trial of the first two prompts; the first text is a reference if there is one.

    Args:
        generated: whether a model will write the texts to judge; texts of data have no tokens.
    """
    first = list(islice(prompts, len(TEXTS)))
    if not first:
        return MADE_UP
    good = next((text for text in first[0].references if text.strip()), TEXTS[0])
    samples = [
        Sample(text, prompt.text, prompt.references, prompt.meta, f"trial/{prompt.id}")
        for text, prompt in zip((good, *TEXTS[1:]), (first[0], first[-1]), strict=True)
    ]
    return Trial(tuple(map(as_generated, samples)) if generated else tuple(samples), are_real=True)


def as_group(trial: Trial) -> Trial:
    """Return the trial with all texts as answers to the first sample's prompt."""
    first = trial.samples[0]
    return replace(trial, samples=tuple(_answer(first, sample) for sample in trial.samples))


def _answer(first: Sample, other: Sample) -> Sample:
    """Return the first sample with the other's text."""
    return replace(first, text=other.text, num_tokens=other.num_tokens, turns=other.turns)


def is_tried(part: Part) -> bool:
    """Return whether a part is called on a few texts before the start."""
    return is_own(part) or part.name in TRIED


def is_own(part: Part) -> bool:
    """Return whether the user's code grades: a class, or the function of the reward `function`."""
    return ":" in part.name or part.name == "function"


def try_reward(score: Callable[[Sequence[Sample]], Any], trial: Trial, *, one_by_one: bool = True) -> Verdict:
    """Score the trial's texts together, or singly after an exception unless they must stay together."""
    try:
        scores_of(score(list(trial.samples)), len(trial.samples))
        return Verdict()
    except Misshapen as error:
        return Verdict(refusal=str(error))
    except RAISED as error:
        reasons: list[BaseException | None] = [error]
    if one_by_one:  # after the handler, or this error would be the context of the others
        reasons = [_reason(score, sample) for sample in trial.samples]
    misshapen = next((str(reason) for reason in reasons if isinstance(reason, Misshapen)), "")
    if misshapen or None in reasons:
        return Verdict(refusal=misshapen)
    refusal = (
        f"none of {len(trial.samples)} texts could be scored: {_in_a_line(reasons[0])}. A text that can't be "
        f"judged deserves a low score; the first one: {trial.samples[0].text[:200]!r}"
    )
    if trial.samples[0].num_tokens is None and "NoneType" in str(reasons[0]):
        refusal += ". sample.num_tokens is None, as nobody knows the tokens of a text from a file"
    raised = traceback_of(reasons[0]) if reasons[0] is not None else ""
    return Verdict(refusal=refusal, raised=raised) if trial.are_real else Verdict(warning=refusal)


def try_metric(metric: Metric, trial: Trial) -> Verdict:
    """Compute the metric over the trial's texts; an exception gives only a warning, as two may be too few."""
    try:
        values_of(metric.compute(list(trial.samples)), len(trial.samples))
        return Verdict()
    except Misshapen as error:
        return Verdict(refusal=str(error))
    except RAISED as error:
        return Verdict(warning=f"could not be computed over {len(trial.samples)} texts: {_in_a_line(error)}")


def _reason(score: Callable[[Sequence[Sample]], Any], sample: Sample) -> BaseException | None:
    """Return a sample's scoring error, or None."""
    try:
        scores_of(score([sample]), 1)
        return None
    except RAISED as error:
        return error


def _in_a_line(error: BaseException | None) -> str:
    return "" if error is None else " ".join(reason_of(error).split())
