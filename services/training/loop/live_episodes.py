"""Write a run's new episodes into episodes.jsonl, for `whetstone watch`.

{"split": "train", "weights": 7, "sample_id": "…", "prompt_text": "…", "reward": 1.0, "end": "ended",
 "turns": [{"observation": "…", "answer": "…", "reward": 1.0, "read": 120, "written": 34, …}, …]}
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.rollout import Rollout
from services.runs.json_lines import append_row, read_rows, to_line, write_atomically
from services.training.loop.evaluations.evaluation import judged, transcript

EACH = 8  # episodes of a split that are kept for each version of the weights
MOST_BYTES = 32 * 2**20  # limit of the file; if it grows larger, its older half is deleted


class LiveEpisodes:
    """Writer of the first episodes of each split for each version of the weights."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._counts: Counter[tuple[str, int]] = Counter()

    def add(self, rollouts: Sequence[Rollout], split: str) -> None:
        """Write these scored episodes, up to the limit."""
        for rollout in rollouts:
            drawn = [turn for turn in rollout.turns if turn.num_tokens]
            weights = max((turn.oldest_and_newest[1] for turn in drawn), default=0)
            self._counts[split, weights] += 1
            if self._counts[split, weights] <= EACH:
                append_row(self._file, episode_row(rollout, split, weights))
        if self._file.exists() and self._file.stat().st_size > MOST_BYTES:
            rows = read_rows(self._file)
            write_atomically(self._file, "".join(map(to_line, rows[len(rows) // 2 :])))


def episode_row(rollout: Rollout, split: str, weights: int) -> dict[str, Any]:
    """Return an episode as a line of the file."""
    return {
        "split": split,
        "weights": weights,
        "sample_id": rollout.prompt.id,
        "prompt_text": rollout.prompt.text,
        "reward": rollout.total_reward,
        **judged(rollout),
        **transcript(rollout),
    }
