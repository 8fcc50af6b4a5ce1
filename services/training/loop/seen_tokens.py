"""Write some episodes of each iteration with the numbers of their tokens, for `whetstone watch --web`.

Example of a line of tokens/7.jsonl. `read` and `written` are the texts of a turn's tokens:

{"iteration": 7, "split": "train", "group": 3, "sample_id": "…", "reward": 1.0, "length": 34, "turns":
 [{"answer": "6 8", …, "seen": {"read": ["3", " 5"], "written": ["6", " 8", ["<eos>"]],
   "logprob": [-0.7, …], "ratio": [1.0, …], "advantage": [0.5, …], "loss": [1, …]}}]}

`logprob` is log μ of the policy that wrote the token, `ratio` π_old/μ with the weights before the update.
Without the learner's numbers, a turn has no `ratio`, `advantage` and `loss`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from contracts.clients import TokenNumbers
from contracts.errors import DiskFull
from contracts.rollout import Rollout, Turn
from services.data.tokens.token_pieces import Piece
from services.runs.json_lines import to_line, write_atomically
from services.training.loop.evaluations.evaluation import judged, transcript

EACH = 16  # episodes of an iteration
MOST_READ, MOST_PIECES = 512, 4096  # last tokens that a turn read; all tokens of an episode
MOST_BYTES = 64 * 2**20  # limit of all files; above it, the oldest files are deleted
DECIMALS = 4
HIGHEST = 60.0  # greatest log of a ratio, so that the ratio stays finite


class SeenTokens:
    """Writer of a run's files in tokens/.

    Args:
        pieces: returns the texts of tokens.
    """

    def __init__(self, folder: Path, pieces: Callable[[Sequence[int]], list[Piece]]) -> None:
        self._folder, self._pieces = folder, pieces
        self._sizes: dict[Path, int] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="seen tokens")
        self._last: Future[None] | None = None
        self._has_failed = False

    def add(self, iteration: int, rollouts: Sequence[Rollout], numbers: Sequence[TokenNumbers]) -> str | None:
        """Start writing a file in the background; return why the last file failed, None if it did not.

        After a failure write no more files, because a page of episodes must not stop a run.

        Raises:
            DiskFull: the disk had no room for the last file.
        """
        error = None if self._last is None else self._last.exception()
        if isinstance(error, DiskFull):
            raise error
        if error is not None:
            first = not self._has_failed
            self._has_failed = True
            return f"{type(error).__name__}: {error}" if first else None
        self._last = self._thread.submit(self.write, iteration, rollouts, numbers)
        return None

    def write(self, iteration: int, rollouts: Iterable[Rollout], numbers: Iterable[TokenNumbers]) -> None:
        """Write an iteration's file: rollouts with numbers first, then the others, in the order of leases."""
        known = {(of_role.lease_id, of_role.role): of_role for of_role in numbers}
        leases = {lease for lease, _ in known}
        ordered = sorted(rollouts, key=lambda rollout: (rollout.lease_id not in leases, rollout.lease_id))
        rows = [self._row(iteration, rollout, known) for rollout in ordered[:EACH]]
        file = self._folder / f"{iteration}.jsonl"
        self._folder.mkdir(exist_ok=True)
        self._drop_oldest(file, write_atomically(file, "".join(map(to_line, rows))).stat().st_size)

    def _row(
        self, iteration: int, rollout: Rollout, known: dict[tuple[int, str], TokenNumbers]
    ) -> dict[str, Any]:
        row = transcript(rollout)
        left = {role: _columns(rollout, role, known) for role in rollout.roles}
        room = MOST_PIECES
        for turn_row, turn in zip(row["turns"], rollout.turns, strict=True):
            if room <= 0:
                break
            columns = left[turn.role]
            seen = {name: list(islice(column, turn.num_tokens)) for name, column in columns.items()}
            read, written = turn.observation[-min(MOST_READ, room) :], turn.tokens[:room]
            turn_row["seen"] = {"read": self._pieces(read), "written": self._pieces(written)} | _seen(
                turn, seen
            )
            room -= len(read) + len(written)
        return {
            "iteration": iteration,
            "split": "train",
            "group": rollout.group,
            "sample_id": rollout.prompt.id,
            "prompt_text": rollout.prompt.text,
            "reward": rollout.total_reward,
            "length": rollout.num_generated,
            **judged(rollout),
            **row,
        }

    def _drop_oldest(self, file: Path, size: int) -> None:
        if self._sizes is None:
            files = sorted(self._folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
            self._sizes = {path: path.stat().st_size for path in files}
        self._sizes.pop(file, None)
        self._sizes[file] = size
        while sum(self._sizes.values()) > MOST_BYTES and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            oldest.unlink(missing_ok=True)
            del self._sizes[oldest]


def _columns(rollout: Rollout, role: str, known: dict[tuple[int, str], TokenNumbers]) -> dict[str, Any]:
    """Return one role's numbers as iterators; {} if they do not cover exactly its tokens."""
    numbers = known.get((rollout.lease_id, role))
    count = sum(turn.num_tokens for turn in rollout.turns if turn.role == role)
    if numbers is None or numbers.num_tokens != count:  # an algorithm may learn from parts of rollouts
        return {}
    return {
        "old": iter(numbers.logprobs),
        "advantage": iter(numbers.advantages),
        "loss": iter(numbers.in_loss),
    }


def _seen(turn: Turn, numbers: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return one turn's numbers in the form of the file."""
    seen = {"logprob": [round(logprob, DECIMALS) for logprob in turn.behavior_logprobs]}
    if not numbers:
        return seen
    both = zip(numbers["old"], turn.behavior_logprobs, strict=False)
    return seen | {
        "ratio": [_short(math.exp(min(old - behavior, HIGHEST))) for old, behavior in both],
        "advantage": [_short(advantage) for advantage in numbers["advantage"]],
        "loss": [int(counts) for counts in numbers["loss"]],
    }


def _short(number: float) -> float:
    """
    >>> _short(1.00012345), _short(0.000123456)
    (1.00012, 0.000123456)
    """
    return float(f"{number:.6g}")
