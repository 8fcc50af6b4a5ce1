"""Servers of one reward or one metric: whatever the grader does, they answer with a score or a reason."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from contracts.errors import InputError, RewardError
from contracts.scores import Answer, Grade, MetricValue, Sample
from reward_servers.answers.of_graders import answers_of
from reward_servers.groups import whole_groups
from reward_servers.isolation.limits import limits_of
from reward_servers.needs import lacking
from reward_servers.part_checks import is_deterministic, loaded
from reward_servers.reasons import RAISED, excerpt_of, reason_of
from reward_servers.settings import Part, ServerSettings
from reward_servers.user_rewards.coroutines import Coroutines
from reward_servers.user_rewards.grades import Misshapen, misfit
from reward_servers.user_rewards.own import scores_groups, scoring_of, wanted_of
from reward_servers.user_rewards.returned import scores_of, values_of
from reward_servers.user_rewards.trial import Trial, Verdict, as_group, is_own, try_metric, try_reward
from reward_servers.user_rewards.watched import Watch

logger = logging.getLogger(__name__)

CUT_GROUPS = (
    "it reads sample.group, and the samples of a call are parts of groups, in any order; its scores are "
    'not cached. With scores = "groups" a call gets all samples of one prompt'
)


class RewardServer:
    """A server of one reward, which keeps a bad sample from failing the others of its batch.

    A coroutine is called for each sample, side by side. A reward of whole groups is called for each group.

    Example: `RewardServer(Part(name="length")).score([Sample(text="a b c")]) == [(3.0, None)]`
    """

    def __init__(self, part: Part, settings: ServerSettings | None = None) -> None:
        self._label, self._name = part.label, part.name
        self._grader = loaded("reward", part)
        shaping = [name for name in ("standardize", "clip", "threshold") if getattr(part, name) is not None]
        self._shaping = ", ".join(shaping)  # for whole texts' scores alone
        self._scoring = scoring_of(self._grader)
        self.scores_groups = scores_groups(self._grader)
        watches = is_own(part) and is_deterministic(part) and not self.scores_groups
        self._watch = Watch() if watches else None
        self._coroutines = Coroutines(settings or ServerSettings()) if self._scoring.is_coroutine else None
        self._told: dict[Any, float] = {}  # counts at the last call of `take_counts`

    @property
    def is_coroutine(self) -> bool:
        return self._coroutines is not None

    @property
    def ends_by_itself(self) -> bool:
        """Return whether each call has deadlines of its own, so that a slow one is no sign of a hang."""
        return self.is_coroutine or limits_of(self._grader) is not None

    @property
    def reads_groups(self) -> bool:
        """Return whether the grader has read a sample's group, although it calls itself deterministic."""
        return self._watch is not None and self._watch.was_read

    @property
    def busy_s(self) -> float:
        """Return the seconds that the oldest call of a coroutine has taken; 0 if there is none."""
        return 0.0 if self._coroutines is None else self._coroutines.busy_s

    def share_rate(self, num_replicas: int) -> None:
        """Tell a coroutine how many replicas share its rate."""
        if self._coroutines is not None:
            self._coroutines.share_rate(num_replicas)

    def take_counts(self) -> dict[str, float]:
        """Return what the grader has added to its `counts` since the last call, such as tokens."""
        counts = getattr(self._grader, "counts", None)
        if not isinstance(counts, dict):
            return {}
        before, self._told = self._told, dict(counts)  # a copy: another thread may add just now
        return {str(k): float(v - before.get(k, 0)) for k, v in self._told.items() if v != before.get(k)}

    def try_out(self, trial: Trial) -> Verdict:
        """Call the grader on a few texts. Never raises for the grader's faults."""
        complete = _complete(self._grader, self._name, as_group(trial) if self.scores_groups else trial)
        watch = Watch()
        watched = replace(complete, samples=tuple(watch.over(complete.samples)))
        together = self.scores_groups
        verdict = Verdict()
        if complete.samples:
            verdict = try_reward(self._tried, watched, one_by_one=not together)
        if watch.was_read and not verdict.warning and not together:
            verdict = replace(verdict, warning=CUT_GROUPS)
        return _of_part("reward", self._label, verdict)

    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        """Return the answer in each text; None if the grader finds no answers."""
        return answers_of(self._grader, texts)

    def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """Return an answer for each sample, in order. Never raises for the grader's faults."""
        answers, units = self._units(samples)
        if self._coroutines is not None:
            return self._gathered(answers, units, samples, self._asked(units, samples).result())
        for places in units:
            graded = self._grade([samples[place] for place in places])
            for place, answer in zip(places, graded, strict=True):
                answers[place] = answer
        return answers

    async def scored(self, samples: Sequence[Sample]) -> list[Answer]:
        """Return what `score` does; while a coroutine waits, other calls go on."""
        if self._coroutines is None:
            return await asyncio.to_thread(self.score, samples)
        answers, units = self._units(samples)
        outcomes = await asyncio.wrap_future(self._asked(units, samples))
        return self._gathered(answers, units, samples, outcomes)

    def _units(self, samples: Sequence[Sample]) -> tuple[list[Answer], list[list[int]]]:
        """Return an answer for each sample that lacks something, and the places to grade, call by call."""
        lacks = [lacking(self._grader, self._name, sample) for sample in samples]
        if self.scores_groups:
            lacks = [lack or _no_group(sample) for lack, sample in zip(lacks, samples, strict=True)]
        answers: list[Answer] = [
            (None, lack and f"reward {self._label}: {lack}; {excerpt_of(sample)}")
            for sample, lack in zip(samples, lacks, strict=True)
        ]
        complete = [place for place, lack in enumerate(lacks) if lack is None]
        if self.scores_groups:
            return answers, whole_groups(samples, answers, self._label)
        if self.is_coroutine:
            return answers, [[place] for place in complete]
        return answers, [complete] if complete else []

    def _asked(
        self, units: Sequence[Sequence[int]], samples: Sequence[Sample]
    ) -> "Future[list[list[Answer] | Exception]]":
        assert self._coroutines is not None

        async def scored(places: Sequence[int]) -> list[Answer]:
            unit = [samples[place] for place in places]
            return self._answers(await self._scoring.call(self._shown(unit)), unit)

        return self._coroutines.submit([partial(scored, places) for places in units])

    def _gathered(
        self,
        answers: list[Answer],
        units: Sequence[Sequence[int]],
        samples: Sequence[Sample],
        outcomes: Sequence[list[Answer] | Exception],
    ) -> list[Answer]:
        for places, graded in zip(units, outcomes, strict=True):
            if isinstance(graded, Exception):
                graded = [self._failure(graded, samples[place]) for place in places]
            for place, answer in zip(places, graded, strict=True):
                answers[place] = answer
        return answers

    def _grade(self, samples: Sequence[Sample]) -> list[Answer]:
        try:
            return self._answers(self._scoring.call(self._shown(samples)), samples)
        except RAISED as error:
            if len(samples) == 1 or self.scores_groups:
                return [self._failure(error, sample) for sample in samples]
            logger.warning(
                "reward %s: a batch of %d failed (%s); its samples are scored one by one",
                self._label,
                len(samples),
                reason_of(error),
            )
        return [answer for sample in samples for answer in self._grade([sample])]

    def _scores(self, returned: Any, samples: Sequence[Sample]) -> list[float | Grade | None]:
        """Return one score for each sample.

        Raises:
            RewardError: as for `scores_of`.
            Misshapen: the reward scores tokens or spans, but its shaping needs one score for the whole text.
        """
        scores = scores_of(returned, len(samples))
        by_places = [score.unit for score in scores if isinstance(score, Grade) and score.unit != "text"]
        if by_places and self._shaping:
            raise Misshapen(
                f"score() returned scores of {by_places[0]}s, but {self._shaping}= needs one score for the "
                f"whole text; leave out {self._shaping}=, and shape the scores in the reward"
            )
        return scores

    def _answers(self, returned: Any, samples: Sequence[Sample]) -> list[Answer]:
        """Return an answer for each sample; errors as `_scores`. A group fails if one of its samples does."""
        scores = self._scores(returned, samples)
        why = [misfit(score, sample) for score, sample in zip(scores, samples, strict=True)]
        if self.scores_groups and any(why):
            raise RewardError(f"score(): {next(filter(None, why))}")
        return [
            (score, None) if wrong is None else self._failure(RewardError(f"score(): {wrong}"), sample)
            for score, wrong, sample in zip(scores, why, samples, strict=True)
        ]

    def _failure(self, error: BaseException, sample: Sample) -> Answer:
        return None, f"reward {self._label}: {reason_of(error)}; {excerpt_of(sample)}"

    def _shown(self, samples: Sequence[Sample]) -> list[Sample]:
        return list(samples) if self._watch is None else self._watch.over(samples)

    def _tried(self, samples: Sequence[Sample]) -> Any:
        """Return what the grader returns for a trial's samples, once it is there; raise what it raises."""
        if self._coroutines is None:
            return self._fitting(self._scoring.call(list(samples)), samples)
        units = [list(samples)] if self.scores_groups else [[sample] for sample in samples]
        future = self._coroutines.submit([partial(self._scoring.call, unit) for unit in units])
        scores: list[Any] = []
        for unit, returned in zip(units, future.result(), strict=True):
            if isinstance(returned, Exception):
                raise returned
            scores += self._fitting(returned, unit)
        return scores

    def _fitting(self, returned: Any, samples: Sequence[Sample]) -> list[float | Grade | None]:
        """Return the scores, all of whose spans fit; errors as `_scores`. A trial's tokens are made up."""
        scores = self._scores(returned, samples)
        for score, sample in zip(scores, samples, strict=True):
            if not isinstance(score, Grade) or score.unit != "span":
                continue
            if (wrong := misfit(score, sample)) is not None:
                raise RewardError(f"score(): {wrong}")
        return scores


class MetricServer:
    """A server of one metric, which it computes over a corpus.

    Example: `MetricServer(Part(name="length")).compute([Sample(text="a b c")])
    == {"length/mean_words": MetricValue(corpus=3.0, rows=(3.0,))}`
    """

    def __init__(self, part: Part) -> None:
        self._label, self._name = part.label, part.name
        self._metric = loaded("metric", part)

    def try_out(self, trial: Trial) -> Verdict:
        """Call the metric on a few texts. Never raises for the metric's faults."""
        complete = _complete(self._metric, self._name, trial)
        verdict = try_metric(self._metric, complete) if complete.samples else Verdict()
        return _of_part("metric", self._label, verdict)

    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        """Return the answer in each text; None if the metric finds no answers."""
        return answers_of(self._metric, texts)

    def compute(
        self, samples: Sequence[Sample], evaluation: Mapping[str, Any] | None = None
    ) -> dict[str, MetricValue]:
        """Return each key's value over all samples.

        Args:
            evaluation: values of the arguments that the metric takes beside the samples, by name.

        Raises:
            RewardError: there are no samples, one lacks references or meta data, or the metric raised or
                returned something that is no value.
        """
        if not samples:
            raise RewardError(f"metric {self._label}: there are no samples to compute it over")
        lacks = [(lack, sample) for sample in samples if (lack := lacking(self._metric, self._name, sample))]
        if lacks:
            lack, sample = lacks[0]
            where = f"{len(lacks)} of {len(samples)} samples, the first" if len(lacks) > 1 else "one sample"
            raise RewardError(f"metric {self._label}: {lack} ({where}); {excerpt_of(sample)}")
        wanted = {name: (evaluation or {})[name] for name in wanted_of(self._name)}
        compute = partial(self._metric.compute, **wanted)
        try:
            return values_of(compute(list(samples)), len(samples))
        except InputError as error:  # the metric can't use a sample: find which
            culprit = _culprit(compute, samples)
            raise RewardError(f"metric {self._label}: {reason_of(error)}{culprit}") from error
        except RAISED as error:
            raise RewardError(f"metric {self._label}: {reason_of(error)}") from error


def _culprit(compute: Callable[[list[Sample]], Any], samples: Sequence[Sample]) -> str:
    """Name the first sample that the metric refuses on its own; "" if there is none."""
    for number, sample in enumerate(samples, start=1):
        try:
            compute([sample])
        except InputError:
            return f" (sample {number} of {len(samples)}); {excerpt_of(sample)}"
        except RAISED:
            continue
    return ""


def _complete(component: Any, name: str, trial: Trial) -> Trial:
    """Return the trial with the samples that the component can use; made-up ones have no meta data."""
    samples = tuple(sample for sample in trial.samples if lacking(component, name, sample) is None)
    return replace(trial, samples=samples)


def _of_part(kind: str, label: str, verdict: Verdict) -> Verdict:
    """Return the verdict with the part's kind and label in front of its texts."""
    texts = [text and f"{kind} {label}: {text}" for text in (verdict.refusal, verdict.warning)]
    return replace(verdict, refusal=texts[0], warning=texts[1])


def _no_group(sample: Sample) -> str | None:
    return None if sample.group else 'it scores whole groups, and this sample has no group; give it "group"'
