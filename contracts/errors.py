"""The classes of all errors that Whetstone raises, one for each kind of failure.

WhetstoneError
├── InputError            the user's configuration, data, model or class is wrong     exit code 2
└── RunError              an unexpected fault while running                           exit code 1
    ├── RewardError       a reward or metric server failed or answered nonsense
    ├── EpisodeError      an environment died, hung or raised too often
    ├── WorkerError       a rollout worker died, hung or could not be replaced
    ├── LearnerError      the learner failed; its state can't be trusted
    │   └── LearnerLost   its process is gone, and another may take its place
    │       ├── LearnerFailed   it raised an unexpected error; another may succeed
    │       └── LearnerSilent   it hangs: no sign of life, or no progress, for too long
    ├── WeightsError      weights did not arrive, or arrived wrong
    ├── DiskFull          a disk had no room for a file
    └── DeadlineExceeded  a wait took too long

Each takes one positional message and nothing else, so that it can be pickled and cross processes.
"""

import difflib
from collections.abc import Iterable


class WhetstoneError(Exception):
    """The base of all errors that Whetstone raises on purpose."""


class InputError(WhetstoneError):
    """A mistake in the user's input; the message says what was got, where, and what to do."""


class RunError(WhetstoneError):
    """A fault while running that the user's input does not explain."""


class RewardError(RunError):
    """A failed reward or metric server: it raised, timed out, or returned a value that is not a score."""


class EpisodeError(RunError):
    """An unplayable episode: its environment died, hung or raised at every attempt."""


class WorkerError(RunError):
    """A failed rollout worker that could not be replaced within its limits."""


class LearnerError(RunError):
    """A failure of the learner while it updated or scored."""


class LearnerLost(LearnerError):
    """The learner's process died or hung, and lost what it had not saved."""


class LearnerFailed(LearnerLost):
    """The learner raised an unexpected error, so its state can't be trusted any more."""


class LearnerSilent(LearnerLost):
    """The learner gave no sign of life, or made no progress, for longer than its settings allow."""


class WeightsError(RunError):
    """Published weights did not reach a worker, or its probe disagrees with the learner's."""


class DiskFull(RunError):
    """A disk, a quota or a limit without room for a file, which the message names."""


class DeadlineExceeded(RunError):
    """A wait beyond its deadline; the message names what did not come."""


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'rouge'?"` for a near miss of a known name, else the list of names.

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
    """Return the list of names, or words for an empty list.

    >>> there_are(["length", "rouge"]), there_are([]), there_are([], "columns")
    ('there are: length, rouge', 'there is none', 'there are no columns')
    """
    if listed := ", ".join(map(str, names)):
        return f"there are: {listed}"
    return f"there are no {what}" if what else "there is none"
