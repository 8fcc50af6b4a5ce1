"""Trial calls of a user's graders before anything runs, each in a short-lived process.

`whetstone plan` starts no servers and loads no grader into its process. A grader that needs a GPU or loads
slowly is tried later, in its replica.
"""

import json
from collections.abc import Sequence

from contracts.errors import RewardError
from reward_servers.settings import Part, RewardServersSettings, ServerSettings
from reward_servers.user_rewards.sandbox import Child, Kind, row_of
from reward_servers.user_rewards.trial import Trial, Verdict, is_tried

LOAD_S = 30.0  # a grader that loads longer is heavy, mostly a model


def try_apart(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, trial: Trial
) -> list[str]:
    """Try all the user's classes; return warnings.

    Raises:
        InputError: a class can't be made, or its answers are wrong.
    """
    kinds: tuple[tuple[Kind, Sequence[Part]], ...] = (("reward", rewards), ("metric", metrics))
    warnings = []
    for kind, parts in kinds:
        for part in filter(is_tried, parts):
            verdict = _tried(kind, part, settings.for_label(part.label), trial.for_grader(kind, part.label))
            verdict.check()
            warnings += [verdict.warning] if verdict.warning else []
    return warnings


def _tried(kind: Kind, part: Part, settings: ServerSettings, trial: Trial) -> Verdict:
    name = f"{kind} {part.label}"
    if settings.num_gpus:
        return Verdict(warning=f"{name}: it asks for a GPU, and is tried when its replica is up")
    if not _is_json(trial):
        return Verdict(warning=f"{name}: the task's meta data is no JSON; it is tried when its replica is up")
    limits = settings.sandbox if kind == "reward" else None
    try:
        child = Child(kind, part, limits, LOAD_S, settings)
    except RewardError as error:  # an InputError, which the user can mend, passes
        return Verdict(warning=f"{name}: not tried here, but when its replica is up: {error}")
    try:
        return child.try_out(trial, settings.timeout_s if limits is None else limits.seconds)
    except RewardError as error:
        return Verdict(refusal=f"{name}: {error}")
    finally:
        child.end()


def _is_json(trial: Trial) -> bool:
    """Return whether the trial's samples survive a conversion to JSON."""
    try:
        rows = [row_of(sample) for sample in trial.samples]
    except RewardError:
        return False
    return all(json.loads(json.dumps(row["meta"])) == row["meta"] for row in rows)
