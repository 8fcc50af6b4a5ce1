"""From a column of weights to the prompts that a run trains on."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from services.config.compose import run_settings
from services.runs.folder import RunFolder
from services.runs.tracking.console import Console
from services.runs.tracking.tracker import Tracker
from services.terminal.interrupts import StopRequest
from services.training.loop.controller import Clients
from services.training.train.loop import controller
from tests.fakes import Calls, FakeLearner, FakeRewards, FakeWorkers
from tests.models import make_tiny_model


@pytest.mark.parametrize(("scale", "expected"), [(0.0, {"0", "1", "2"}), (1.0, {"1"})])
def test_a_run_asks_what_its_weights_say(tmp_path: Path, scale: float, expected: set[str]) -> None:
    model = make_tiny_model(tmp_path / "model")
    rows = [{"prompt": str(n), "weight": int(n == 1)} for n in range(3)]
    file = tmp_path / "all.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ", ".join(f"{split}: {file}" for split in ("train", "validation", "test"))
    settings = run_settings(
        [
            f"model.path={model}",
            "task=prompts",
            "reward=length",
            f"task.data_files={{{files}}}",
            "task.weight_column=weight",
            f"rollout.priority_scale={scale}",
            "rollout.prompts_per_iteration=3",
            "iterations=2",
            "tracking.enabled=false",
            f"output_dir={tmp_path / 'runs'}",
        ]
    )
    calls: Calls = []
    workers, trained = FakeWorkers(calls), set()

    class Learner(FakeLearner):
        def update(self, rollouts: Any, on_progress: Any) -> dict[str, float]:
            trained.update(rollout.prompt.text for rollout in rollouts)
            return super().update(rollouts, on_progress)

    folder = RunFolder.open(settings.output_dir, settings.run_name, config=settings.resolved(), resume="auto")
    loop = controller(
        settings,
        Clients(workers, FakeRewards(), Learner(calls)),
        folder,
        Tracker.start(settings.tracking, tmp_path, "run"),
        Console(Terminal(file=io.StringIO())),
        StopRequest(),
    )
    loop.run()
    assert trained == expected
