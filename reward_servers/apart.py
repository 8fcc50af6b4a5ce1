"""A user's graders tried where nothing runs yet: each in a process of its own, which is ended at once.

`whetstone plan` starts nothing and loads nothing into its own process. What can't be tried so, since it asks
for a GPU or takes long to load, is left to its replica.
"""

import json
from collections.abc import Sequence

from contracts.errors import InputError, RewardError
from reward_servers.sandbox import Child, Kind, row_of
from reward_servers.settings import Part, RewardServersSettings, ServerSettings
from reward_servers.trial import Trial, Verdict, is_own

LOAD_S = 30.0  # what takes longer is heavy: a model, mostly


def try_apart(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, trial: Trial
) -> list[str]:
    """Try all classes of the user's own; returns what should be known of them.

    Raises:
        InputError: one can't be made, or does not answer as it should.
    """
    kinds: tuple[tuple[Kind, Sequence[Part]], ...] = (("reward", rewards), ("metric", metrics))
    told = []
    for kind, parts in kinds:
        for part in filter(is_own, parts):
            verdict = _tried(kind, part, settings.for_label(part.label), trial)
            if verdict.refusal:
                raise InputError(verdict.refusal)
            told += [verdict.warning] if verdict.warning else []
    return told


def _tried(kind: Kind, part: Part, settings: ServerSettings, trial: Trial) -> Verdict:
    name = f"{kind} {part.label}"
    if settings.num_gpus:
        return Verdict(warning=f"{name}: it asks for a GPU, and is tried when its replica is up")
    if not _is_json(trial):
        return Verdict(warning=f"{name}: the task's meta data is no JSON; it is tried when its replica is up")
    limits = settings.sandbox if kind == "reward" else None
    try:
        child = Child(kind, part, limits, LOAD_S)
    except RewardError as error:  # what the user can mend is an InputError
        return Verdict(warning=f"{name}: not tried here, but when its replica is up: {error}")
    try:
        return child.try_out(trial, settings.timeout_s if limits is None else limits.seconds)
    except RewardError as error:
        return Verdict(refusal=f"{name}: {error}")
    finally:
        child.end()


def _is_json(trial: Trial) -> bool:
    """Whether a process beside this one would see the same."""
    try:
        rows = [row_of(sample) for sample in trial.samples]
    except RewardError:
        return False
    return all(json.loads(json.dumps(row["meta"])) == row["meta"] for row in rows)
