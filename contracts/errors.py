"""The error vocabulary: one class per border crossed.

WhetstoneError
├── InputError            the user's configuration, data, model or class is wrong     exit code 2
└── RunError              an unexpected fault while running                           exit code 1
    ├── RewardError       a reward or metric server failed or answered nonsense
    ├── EpisodeError      an environment died, hung or raised too often
    ├── WorkerError       a rollout worker died, hung or could not be replaced
    ├── LearnerError      the learner failed; its state can't be trusted
    │   └── LearnerLost   its process is gone, and another may take its place
    │       ├── LearnerFailed   it raised what nobody expected; another may fare better
    │       └── LearnerSilent   it hangs: no sign of life, or no progress, for too long
    ├── WeightsError      weights did not arrive, or arrived wrong
    ├── DiskFull          there was no room for what was to be written
    └── DeadlineExceeded  something was waited for too long

Exceptions cross processes, so each takes one positional message and nothing else:
that keeps them picklable.
"""

import difflib
from collections.abc import Iterable


class WhetstoneError(Exception):
    """Base of all errors that Whetstone raises on purpose."""


class InputError(WhetstoneError):
    """What the user gave is wrong; the message says what was got, where, and what to do."""


class RunError(WhetstoneError):
    """A fault while running that the user's input does not explain."""


class RewardError(RunError):
    """A reward or metric server raised, timed out, or returned something that is no score."""


class EpisodeError(RunError):
    """An episode could not be played: its environment died, hung or raised, at every attempt."""


class WorkerError(RunError):
    """A rollout worker failed and could not be replaced within its limits."""


class LearnerError(RunError):
    """The learner failed while it updated or scored."""


class LearnerLost(LearnerError):
    """The learner's process died or hung: what it had not saved is gone."""


class LearnerFailed(LearnerLost):
    """The learner raised what is no statement of its own: its state can't be trusted any more."""


class LearnerSilent(LearnerLost):
    """The learner gives no sign of life, or gets nowhere, for longer than its settings allow."""


class WeightsError(RunError):
    """Published weights did not reach a worker, or its probe disagrees with the learner's."""


class DiskFull(RunError):
    """A disk, a quota or a limit left no room for a file; the message names it."""


class DeadlineExceeded(RunError):
    """A wait outlasted its deadline; the message says what was waited for."""


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """`"; did you mean 'rouge'?"` for a near miss of a known name, else the list of names.

    >>> did_you_mean("rogue", ["rouge", "length"])
    "; did you mean 'rouge'? (there are: length, rouge)"
    >>> did_you_mean("xyz", ["rouge", "length"]), did_you_mean("xyz", [])
    ('; there are: length, rouge', '; there is none')
    """
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'? ({there_are(names)})"
    return f"; {there_are(names)}"


def there_are(names: Iterable[object], what: str = "") -> str:
    """The list of names, or that there is nothing to list.

    >>> there_are(["length", "rouge"]), there_are([]), there_are([], "columns")
    ('there are: length, rouge', 'there is none', 'there are no columns')
    """
    if listed := ", ".join(map(str, names)):
        return f"there are: {listed}"
    return f"there are no {what}" if what else "there is none"
