"""A measure that writes each iteration's rollouts into a file, as the driver hands them to the learner."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.rollout import Rollout


class Kept:
    """Adds a line for each rollout: its lease, texts, reward, and the tokens that were read and drawn."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def measure(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        with self._file.open("a") as lines:
            lines.writelines(json.dumps(row_of(rollout)) + "\n" for rollout in rollouts)
        return {}


def row_of(rollout: Rollout) -> dict[str, Any]:
    aligned = zip(rollout.tokens, rollout.loss_mask, strict=True)
    return {
        "lease": rollout.lease_id,
        "group": rollout.group,
        "text": rollout.text,
        "reward": rollout.total_reward,
        "contexts": [rollout.context(turn) for turn in range(len(rollout.turns))],
        "drawn": [turn.tokens for turn in rollout.turns],
        "versions": [turn.weight_versions for turn in rollout.turns],
        "roles": [turn.role for turn in rollout.turns],
        "rewards": [turn.reward for turn in rollout.turns],
        "seen": [turn.observation_text for turn in rollout.turns],
        "trained": [token for token, mine in aligned if mine],
    }


def measure_into(file: Path) -> str:
    """The override for a run."""
    return f"measures={{name: 'tests.kept_rollouts:Kept', file: '{file}'}}"


def kept_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
