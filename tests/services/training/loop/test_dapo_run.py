"""`algorithm=dapo` with a real engine and a real learner: full batches, and the same numbers after a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.settings import build
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from tests.local_run import train_here
from tests.models import make_tiny_model

ITERATIONS, WANTED, GROUP = 3, 3, 3
TIMES = ("time/", "throughput/")

pytestmark = pytest.mark.slow


def settings(model: Path, output: Path) -> RunSettings:
    options: dict[str, Any] = {
        "model": {"path": str(model)},
        "task": {"name": "increasing_numbers", "num_prompts": 40, "num_eval_prompts": 2},
        "reward": "tests.services.training.loop.test_dapo_run:Rare",
        "metrics": [],
        "algorithm": {"name": "dapo", "learning_rate": 1e-2, "max_refills": 20},
        "rollout": {
            "prompts_per_iteration": WANTED,
            "group_size": GROUP,
            "max_tokens": 6,
            "engine": "transformers",
            "num_threads": 1,
            "deterministic": True,
        },
        "learner": {"num_threads": 1, "device": "cpu"},
        "iterations": ITERATIONS,
        "evaluate_every": 0,
        "save_every": 1,
        "tracking": {"enabled": False},
        "output_dir": str(output),
        "run_name": "run",
        "seed": 1,
    }
    return build(RunSettings, options, where="")


class Rare:
    """Rewards an even last number of a text in a third of all prompts: the other groups earn nothing."""

    def score(self, samples: Any) -> list[float]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Any) -> float:
        kill_after = int(os.environ.get("KILL_AFTER", "0"))
        Rare.num_scored += 1
        if kill_after and Rare.num_scored > kill_after:
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of a refill
        numbers = [int(word) for word in sample.text.split() if word.isdigit()]
        return float(sum(map(ord, sample.prompt)) % 3 == 0 and bool(numbers) and numbers[-1] % 2 == 0)

    num_scored = 0


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    """Both lines of each iteration, without what the clock says."""
    return [
        {key: value for key, value in (info | training).items() if not key.startswith(TIMES)}
        for info, training in zip(folder.rollout_info(), folder.training_info(), strict=True)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return rows(train_here(settings(model, tmp_path_factory.mktemp("whole"))))


def test_every_batch_is_full_and_every_prompt_accounted_for(whole: list[dict[str, Any]]) -> None:
    assert len(whole) == ITERATIONS
    for row in whole:
        assert row["refill/kept"] == WANTED and row["refill/full_share"] == 1
        assert row["rollouts/trained"] == row["rollouts/scored"] == WANTED * GROUP
        parts = [row[f"refill/{name}"] for name in ("kept", "constant", "surplus", "lost")]
        assert sum(parts) == row["refill/leased"]
        assert row["refill/reward_mean"] < row["reward/mean"]  # the dropped ones earned nothing
    assert sum(row["refill/constant"] for row in whole) > ITERATIONS  # so something was replaced
    assert max(row["refill/rounds"] for row in whole) > 1


@pytest.mark.long
def test_killed_in_a_refill_and_resumed_it_has_equal_metrics(
    model: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    """SIGKILL while the third iteration refills; the same command then goes on from the second.

    Equal to the bit, but for what the engine rounds: its last bits depend on the texts that share a pass.
    """
    per_round = [int(row["refill/leased"]) * GROUP for row in whole]
    evaluated = 4  # validation and test, before the first iteration
    kill_after = evaluated + sum(per_round[:2]) + WANTED * GROUP + 1
    killed = run(model, tmp_path, KILL_AFTER=str(kill_after))
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    folder = RunFolder(tmp_path / "run")
    assert len(folder.rollout_info()) == 2
    resumed = run(model, tmp_path)
    assert resumed.returncode == 0, resumed.stderr.decode()
    differing = [
        f"{number}: {key} {value} and {now.get(key)}"
        for number, (before, now) in enumerate(zip(whole, rows(folder), strict=True), start=1)
        for key, value in before.items()
        if now.get(key) != (pytest.approx(value, abs=1e-9) if key.startswith("mismatch") else value)
    ]
    assert not differing, "\n".join(differing)


def run(model: Path, output: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    code = (
        "from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from tests.local_run import train_here\n"
        "from tests.services.training.loop.test_dapo_run import settings\n"
        f"train_here(settings(Path({str(model)!r}), Path({str(output)!r})))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, timeout=300
    )
