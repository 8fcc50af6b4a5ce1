"""Servers of one reward or one metric: whatever the grader does, they answer with a score or a reason."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from contracts.components import check_component, create, find
from contracts.errors import InputError, RewardError, WhetstoneError
from contracts.redaction import redact
from contracts.scores import FindsAnswers, Metric, MetricValue, Reward, Sample
from contracts.settings import Settings
from reward_servers.metrics import METRICS
from reward_servers.requirements import check_requirements, missing, requires
from reward_servers.returned import scores_of, values_of
from reward_servers.rewards import REWARDS
from reward_servers.settings import Part
from reward_servers.trial import Trial, Verdict, is_own, try_metric, try_reward
from reward_servers.watched import Watch

logger = logging.getLogger(__name__)

CUT_GROUPS = (
    "it reads sample.group, and the samples of a call are parts of groups, in any order; its scores are "
    "not cached"
)

# The score of one sample, or the reason why it has none.
Answer = tuple[float | None, str | None]

BUILT_IN = {"reward": REWARDS, "metric": METRICS}
PROTOCOLS: Mapping[str, type] = {"reward": Reward, "metric": Metric}


class ChecksItself(Protocol):
    """Optional methods of a grader: `check` looks at files before a run, `load` loads the model."""

    def check(self) -> None: ...

    def load(self) -> None: ...


def check_parts(kind: str, parts: Sequence[Part]) -> None:
    """Refuse parts that no machine could serve, by their names and options alone.

    A user's class is imported and its options are matched with its constructor, but no instance is made:
    that may load a model, which only the replica should do.

    Args:
        kind: "reward" or "metric".

    Raises:
        InputError: a name or an option is unknown, or a class doesn't import, lacks its method, or has one
            that takes other arguments.
    """
    for part in parts:
        found = find(kind, part.name, BUILT_IN[kind])
        _check_shaping(kind, part, found)
        check_component(kind, part.name, found, PROTOCOLS[kind])
        if issubclass(found, Settings):
            _create(kind, part)
            continue
        try:
            inspect.signature(found).bind(**part.options)
        except TypeError as error:
            raise InputError(
                f"{kind}={part.name}: {found.__name__} does not take these options: {error}"
            ) from None


def check_at_hand(kind: str, parts: Sequence[Part]) -> None:
    """Refuse parts that this machine can't serve as it is now, before anything starts.

    The machine must have what a built-in names in `requires`. Its `check()` looks at the files that its
    options name, without loading them.

    Raises:
        InputError: something is missing; says the command that installs it.
    """
    for part in parts:
        found = find(kind, part.name, BUILT_IN[kind])
        check_requirements(found, where=f"{kind}={part.name}")
        if issubclass(found, Settings):
            _check_files(kind, part, _create(kind, part))


def needs_references(kind: str, part: Part) -> bool:
    """Return whether the component says that it compares with references."""
    return bool(getattr(find(kind, part.name, BUILT_IN[kind]), "needs_references", False))


def needs_meta(kind: str, part: Part) -> tuple[str, ...]:
    """Return the keys of a prompt's meta data that the component says it reads."""
    return _meta_keys(find(kind, part.name, BUILT_IN[kind]))


def is_ready(kind: str, name: str) -> bool:
    """Return whether this machine can serve a built-in with neither options nor a model."""
    found = find(kind, name, BUILT_IN[kind])
    try:
        _create(kind, Part(name=name))
    except InputError:  # it asks for options
        return False
    return not hasattr(found, "load") and not missing(requires(found))


def is_deterministic(part: Part) -> bool:
    """Return whether a reward's answer depends on the sample alone; True unless its class denies it."""
    return bool(getattr(find("reward", part.name, BUILT_IN["reward"]), "deterministic", True))


def has_reference(references: Sequence[str]) -> bool:
    """Return whether any reference holds more than blanks.

    >>> has_reference(("", "a")), has_reference((" ",)), has_reference(())
    (True, False, False)
    """
    return any(reference.strip() for reference in references)


class RewardServer:
    """A server of one reward, which keeps a bad sample from failing the others of its batch.

    Example: `RewardServer(Part(name="length")).score([Sample(text="a b c")]) == [(3.0, None)]`
    """

    def __init__(self, part: Part) -> None:
        self._label, self._name = part.label, part.name
        self._grader = _loaded("reward", part)
        self._watch = Watch() if is_own(part) and is_deterministic(part) else None

    @property
    def reads_groups(self) -> bool:
        """Return whether the grader has read a sample's group, although it calls itself deterministic."""
        return self._watch is not None and self._watch.was_read

    def try_out(self, trial: Trial) -> Verdict:
        """Call the grader on a few texts. Never raises for the grader's faults."""
        complete = _complete(self._grader, self._name, trial)
        watch = Watch()
        watched = replace(complete, samples=tuple(watch.over(complete.samples)))
        verdict = try_reward(self._grader, watched) if complete.samples else Verdict()
        if watch.was_read and not verdict.warning:
            verdict = replace(verdict, warning=CUT_GROUPS)
        return _of_part("reward", self._label, verdict)

    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        """Return the answer in each text; None if the grader finds no answers."""
        return answers_of(self._grader, texts)

    def score(self, samples: Sequence[Sample]) -> list[Answer]:
        """Return an answer for each sample, in order. Never raises for the grader's faults."""
        lacks = [_lack(self._grader, self._name, sample) for sample in samples]
        complete = [sample for sample, lack in zip(samples, lacks, strict=True) if lack is None]
        graded = iter(self._grade(complete))
        return [
            next(graded) if lack is None else (None, f"reward {self._label}: {lack}; {_excerpt(sample)}")
            for sample, lack in zip(samples, lacks, strict=True)
        ]

    def _grade(self, samples: Sequence[Sample]) -> list[Answer]:
        if not samples:
            return []
        try:
            return [(score, None) for score in self._scores(samples)]
        except Exception as error:  # a grader may raise anything
            if len(samples) == 1:
                return [(None, f"reward {self._label}: {_reason(error)}; {_excerpt(samples[0])}")]
            logger.warning(
                "reward %s: a batch of %d failed (%s); its samples are scored one by one",
                self._label,
                len(samples),
                _reason(error),
            )
        return [answer for sample in samples for answer in self._grade([sample])]

    def _scores(self, samples: Sequence[Sample]) -> list[float]:
        shown = list(samples) if self._watch is None else self._watch.over(samples)
        return scores_of(self._grader.score(shown), len(samples))


class MetricServer:
    """A server of one metric, which it computes over a corpus.

    Example: `MetricServer(Part(name="length")).compute([Sample(text="a b c")])
    == {"length/mean_words": MetricValue(corpus=3.0, rows=(3.0,))}`
    """

    def __init__(self, part: Part) -> None:
        self._label, self._name = part.label, part.name
        self._metric = _loaded("metric", part)

    def try_out(self, trial: Trial) -> Verdict:
        """Call the metric on a few texts. Never raises for the metric's faults."""
        complete = _complete(self._metric, self._name, trial)
        verdict = try_metric(self._metric, complete) if complete.samples else Verdict()
        return _of_part("metric", self._label, verdict)

    def answers(self, texts: Sequence[str]) -> list[str | None] | None:
        """Return the answer in each text; None if the metric finds no answers."""
        return answers_of(self._metric, texts)

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        """Return each key's value over all samples.

        Raises:
            RewardError: there are no samples, one lacks references or meta data, or the metric raised or
                returned something that is no value.
        """
        if not samples:
            raise RewardError(f"metric {self._label}: there are no samples to compute it over")
        lacks = [(lack, sample) for sample in samples if (lack := _lack(self._metric, self._name, sample))]
        if lacks:
            lack, sample = lacks[0]
            where = f"{len(lacks)} of {len(samples)} samples, the first" if len(lacks) > 1 else "one sample"
            raise RewardError(f"metric {self._label}: {lack} ({where}); {_excerpt(sample)}")
        try:
            return values_of(self._metric.compute(list(samples)), len(samples))
        except InputError as error:  # the metric can't use a sample: find which
            raise RewardError(f"metric {self._label}: {_reason(error)}{self._culprit(samples)}") from error
        except Exception as error:  # a metric may raise anything
            raise RewardError(f"metric {self._label}: {_reason(error)}") from error

    def _culprit(self, samples: Sequence[Sample]) -> str:
        """Name the first sample that the metric refuses on its own; "" if there is none."""
        for number, sample in enumerate(samples, start=1):
            try:
                self._metric.compute([sample])
            except InputError:
                return f" (sample {number} of {len(samples)}); {_excerpt(sample)}"
            except Exception:
                continue
        return ""


def answers_of(grader: Any, texts: Sequence[str]) -> list[str | None] | None:
    """Call a grader's `answer` on each text; None if it has no such method of one text.

    A text on which the method raises has no answer.
    """
    find_answer = getattr(grader, "answer", None)
    if not callable(find_answer):
        return None
    try:
        inspect.signature(find_answer).bind("")
    except (TypeError, ValueError):  # a method of the user's for something else
        return None
    return [_answer(find_answer, text) for text in texts]


def _answer(find_answer: Callable[[str], Any], text: str) -> str | None:
    try:
        found = find_answer(text)
    except Exception as error:  # a grader may raise anything
        logger.warning("no answer of a text: %s; the text: %.200r", _reason(error), text)
        return None
    return None if found is None else str(found)


def _check_shaping(kind: str, part: Part, found: type) -> None:
    """Refuse options of the weighted sum for a metric, or for a class that has one of the same name."""
    if not part.shaping:
        return
    if kind == "metric":
        raise InputError(
            f"metrics={part.name}: {', '.join(part.shaping)} is for rewards; a metric is reported as it is"
        )
    options = found.model_fields if issubclass(found, Settings) else inspect.signature(found).parameters
    if both := [word for word in part.shaping if word in options]:
        raise InputError(
            f"reward={part.name}: {both[0]} is an option of the weighted sum, and hides the option of "
            f"{found.__name__} of the same name; rename that one"
        )


def _meta_keys(component: Any) -> tuple[str, ...]:
    keys = getattr(component, "needs_meta", ())
    return (keys,) if isinstance(keys, str) else tuple(keys)


def _complete(component: Any, name: str, trial: Trial) -> Trial:
    """Return the trial with the samples that the component can use; made-up ones have no meta data."""
    samples = tuple(sample for sample in trial.samples if _lack(component, name, sample) is None)
    return replace(trial, samples=samples)


def _of_part(kind: str, label: str, verdict: Verdict) -> Verdict:
    """Return the verdict with the part's kind and label in front of its texts."""
    told = [text and f"{kind} {label}: {text}" for text in (verdict.refusal, verdict.warning)]
    return Verdict(*told)


def _lack(component: Any, name: str, sample: Sample) -> str | None:
    """Say which references or meta data the sample lacks for the component; None if it lacks nothing."""
    if getattr(component, "needs_references", False) and not has_reference(sample.references):
        given = "only empty ones" if sample.references else "none"
        return f"{name} compares with references, and this sample has {given}"
    missing = [key for key in _meta_keys(component) if sample.meta.get(key) is None]
    if missing:
        return f"{name} needs meta data {', '.join(missing)}, and this sample has: {shown_keys(sample.meta)}"
    return None


def shown_keys(meta: Mapping[str, Any]) -> str:
    return ", ".join(map(str, meta)) or "none"


def _create(kind: str, part: Part) -> Any:
    return create(kind, part.name, part.options, BUILT_IN[kind], PROTOCOLS[kind], _besides(kind, part))


def _besides(kind: str, part: Part) -> tuple[type, ...]:
    """Return the optional Protocols of a settings class; a plain class may use their names otherwise."""
    return (ChecksItself, FindsAnswers) if issubclass(find(kind, part.name, BUILT_IN[kind]), Settings) else ()


def _loaded(kind: str, part: Part) -> Any:
    """Return the component with its model loaded, so that the first sample doesn't wait for it."""
    made = _create(kind, part)
    if isinstance(made, Settings) and hasattr(made, "load"):
        made.load()
    return made


def _check_files(kind: str, part: Part, made: Any) -> None:
    if not hasattr(made, "check"):
        return
    try:
        made.check()
    except InputError as error:
        raise InputError(f"{kind}={part.name}: {error}") from None


def _reason(error: Exception) -> str:
    return redact(str(error) if isinstance(error, WhetstoneError) else f"{type(error).__name__}: {error}")


def _excerpt(sample: Sample, limit: int = 200) -> str:
    text = sample.text if len(sample.text) <= limit else sample.text[:limit] + "…"
    return f"the sample: {text!r}"
