"""A call on two texts before anything depends on the answers.

    prompts ─▶ Trial ─┬─▶ train, evaluate, annotate, serve: one replica, as soon as all are deployed
                      ├─▶ score, annotate executor=here: this process
                      └─▶ plan: a process of its own, which is ended (reward_servers/apart.py)

Classes of the user's own are tried; built-in ones have tests. What a grader returns is judged in full. What
it raises depends on the texts, and these are made up: only a reward that scores none of them is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from contracts.rollout import Prompt
from contracts.scores import Metric, Reward, Sample
from reward_servers.returned import Misshapen, scores_of, values_of
from reward_servers.settings import Part

TEXTS = ("The answer is 42.", "I am not sure. Perhaps it is 7?")


@dataclass(frozen=True, slots=True)
class Trial:
    """What a grader is tried on.

    Example: `Trial((Sample("The answer is 42.", prompt="What is 6 · 7?"),), are_real=True)`
    """

    samples: tuple[Sample, ...]
    are_real: bool  # prompts, references and meta data are a run's own, and only the texts may be made up


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a grader is refused, or what should be known of it; "" for nothing."""

    refusal: str = ""
    warning: str = ""


# Where there are no prompts to ask for.
MADE_UP = Trial(
    tuple(Sample(text, "What is the answer?", (TEXTS[0],), {}, "trial/0") for text in TEXTS), are_real=False
)


def trial_of(prompts: Iterable[Prompt]) -> Trial:
    """The first two prompts, with a reference in the place of the first text where there is one."""
    first = list(islice(prompts, len(TEXTS)))
    if not first:
        return MADE_UP
    good = next((text for text in first[0].references if text.strip()), TEXTS[0])
    samples = [
        Sample(text, prompt.text, prompt.references, prompt.meta, f"trial/{prompt.id}")
        for text, prompt in zip((good, *TEXTS[1:]), (first[0], first[-1]), strict=True)
    ]
    return Trial(tuple(samples), are_real=True)


def is_own(part: Part) -> bool:
    """Whether it is a class of the user's own."""
    return ":" in part.name


def try_reward(reward: Reward, trial: Trial) -> Verdict:
    """Score the trial's texts together, and one by one if that raises."""
    try:
        scores_of(reward.score(list(trial.samples)), len(trial.samples))
        return Verdict()
    except Misshapen as error:
        return Verdict(refusal=str(error))
    except Exception:  # a reward may raise anything
        reasons = [_reason(reward, sample) for sample in trial.samples]
    misshapen = next((str(reason) for reason in reasons if isinstance(reason, Misshapen)), "")
    if misshapen or None in reasons:
        return Verdict(refusal=misshapen)
    told = (
        f"none of {len(reasons)} texts could be scored: {_told(reasons[0])}. A text that can't be judged "
        f"deserves a low score; the first one: {trial.samples[0].text[:200]!r}"
    )
    return Verdict(refusal=told) if trial.are_real else Verdict(warning=told)


def try_metric(metric: Metric, trial: Trial) -> Verdict:
    """Compute it over the trial's texts; that two texts are too few for it is no fault."""
    try:
        values_of(metric.compute(list(trial.samples)), len(trial.samples))
        return Verdict()
    except Misshapen as error:
        return Verdict(refusal=str(error))
    except Exception as error:  # a metric may raise anything
        return Verdict(warning=f"could not be computed over {len(trial.samples)} texts: {_told(error)}")


def _reason(reward: Reward, sample: Sample) -> Exception | None:
    """Why a sample can't be scored; None if it can."""
    try:
        scores_of(reward.score([sample]), 1)
        return None
    except Exception as error:
        return error


def _told(error: Exception | None) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
