"""200 iterations of a mixture through the real loop and sources, with fake engines; killed in the middle."""

import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from contracts.rollout import Rollout
from contracts.scores import MetricValue, Sample, Score
from services.config.compose import run_settings
from services.config.settings import RunSettings
from services.runs import checkpoints
from services.runs.folder import RunFolder
from services.runs.tracking.console import Console
from services.runs.tracking.tracker import Tracker
from services.terminal.interrupts import StopRequest
from services.training.loop.controller import Clients
from services.training.train.loop import controller
from tests.fakes import FakeLearner, FakeRewards, FakeWorkers
from tests.models import make_tiny_model

ITERATIONS, A_BATCH, GROUP = 200, 8, 2
SOLVED, NEVER, NOW_AND_THEN = "solved", "never", "now and then"


class Killed(Exception):
    """Stands for the death of the process: nothing is saved."""


class Judged(FakeRewards):
    """A third of the prompts is always solved, a third never, and a third by every second answer."""

    def __init__(self, by_part: dict[str, list[str]]) -> None:
        super().__init__()
        self.by_part = by_part

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]:
        future: Future[list[Score]] = Future()
        future.set_result([self._of(sample) for sample in samples])
        return future

    def _of(self, sample: Sample) -> Score:
        lease = int(sample.text.split()[-1])
        total = {SOLVED: 1.0, NEVER: 0.0, NOW_AND_THEN: float(lease % 2)}[kind_of(sample.prompt)]
        (label,) = self.by_part[sample.meta.get("part", "")]
        return Score(total, {label: total})

    def compute_metrics(self, samples: Sequence[Sample], part: str | None = None) -> dict[str, MetricValue]:
        assert part is None or {sample.meta["part"] for sample in samples} == {part}
        return super().compute_metrics(samples)


@dataclass(frozen=True)
class Answered:
    """Tokens that are trained on."""

    lease: int
    prompt: str
    text: str
    reward: float

    @property
    def part(self) -> str:
        return self.prompt.split("/")[0]

    @property
    def kind(self) -> str:
        return kind_of(self.text)


class Recorder(FakeLearner):
    """Writes down the prompts of every update."""

    def __init__(self) -> None:
        super().__init__([])
        self.prompts: list[list[Answered]] = []

    def update(
        self, rollouts: Sequence[Rollout], on_progress: Callable[[str, int, int], None]
    ) -> dict[str, float]:
        self.prompts.append(
            [
                Answered(rollout.lease_id, rollout.prompt.id, rollout.prompt.text, rollout.total_reward)
                for rollout in rollouts
            ]
        )
        return super().update(rollouts, on_progress)


def kind_of(prompt: str) -> str:
    return (SOLVED, NEVER, NOW_AND_THEN)[int(prompt.split()[0]) % 3]


class Run:
    """A run with fresh clients on a folder, as after a new start of the command."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.folder = RunFolder.open(
            settings.output_dir, settings.run_name, config=settings.resolved(), resume="auto"
        )
        self.learner, self.workers = Recorder(), FakeWorkers([])
        runs = settings.parts or {"": settings}
        by_part = {part: [reward.label for reward in run.reward] for part, run in runs.items()}
        clients = Clients(self.workers, Judged(by_part), self.learner)
        console = Console(Terminal(file=io.StringIO()))
        tracker = Tracker.start(settings.tracking, settings.output_dir, settings.run_name)
        self.controller = controller(settings, clients, self.folder, tracker, console, StopRequest())

    def killed_in(self, iteration: int) -> "Run":
        """Die in an update: what is leased ahead is in flight, and checkpoints are older."""
        update = self.learner.update

        def fatal(rollouts: Sequence[Rollout], on_progress: Callable[..., None]) -> dict[str, float]:
            if self.learner.version == iteration:
                raise Killed
            return update(rollouts, on_progress)

        self.learner.update = fatal  # type: ignore[method-assign]
        with pytest.raises(Killed):
            self.controller.run()
        return self

    def whole(self) -> "Run":
        self.controller.run()
        return self

    @property
    def state(self) -> dict[str, Any]:
        return checkpoints.read_state(self.folder.checkpoint(ITERATIONS))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log of all iterations, without what the clock says."""
        return [
            {key: value for key, value in row.items() if not key.startswith(("time/", "throughput/"))}
            for row in self.folder.rollout_info()
        ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _python_keeps_its_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.terminal.interrupts.signal.signal", lambda number, handler: None)


def settings(model: Path, folder: Path, *overrides: str) -> RunSettings:
    files = {}
    for part, count in (("easy", 60), ("hard", 30)):
        files[part] = model.parent / f"{part}.jsonl"
        rows = [{"prompt": f"{row} 1 2", "answer": "3"} for row in range(count)]
        files[part].write_text("".join(json.dumps(row) + "\n" for row in rows))
    defaults = [
        f"model.path={model}",
        "task=mixture",
        f"task.parts.easy={{task: prompts, data_files: {files['easy']}, weight: 3, reward: dates}}",
        f"task.parts.hard={{task: prompts, data_files: {files['hard']}, reward: length}}",
        *(f"output_dir={folder}", "run_name=run", f"iterations={ITERATIONS}", "seed=3"),
        *("evaluate_every=0", "save_every=30", "evaluation.num_prompts=5", "tracking.enabled=false"),
        *(f"rollout.prompts_per_iteration={A_BATCH}", f"rollout.group_size={GROUP}"),
    ]
    return run_settings([*defaults, *overrides])


WAYS = [
    ("algorithm=grpo",),
    ("algorithm=grpo", "curriculum=pass_rate", "rollout.max_staleness=2"),
    ("algorithm=dapo", "curriculum=pass_rate"),
    ("algorithm=grpo", "curriculum=tests.own_curricula:Walk", "rollout.max_staleness=2"),
]


@pytest.mark.parametrize("overrides", WAYS, ids=["plain", "ahead", "dapo", "own ahead"])
def test_a_killed_mixture_goes_on_to_the_bit(model: Path, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    whole = Run(settings(model, tmp_path / "whole", *overrides)).whole()
    killed_settings = settings(model, tmp_path / "killed", *overrides)
    first = Run(killed_settings).killed_in(100)  # the newest checkpoint is of iteration 90
    second = Run(killed_settings).whole()

    assert len(whole.learner.prompts) == ITERATIONS
    assert first.learner.prompts == whole.learner.prompts[:100]
    assert second.learner.prompts == whole.learner.prompts[90:]
    assert second.state["source"] == whole.state["source"]
    assert second.lines == whole.lines


def test_a_class_of_ones_own_goes_on_where_it_was_and_sees_each_group_once_as_they_finish(
    model: Path, tmp_path: Path
) -> None:
    """After a kill other groups may finish first, because texts begin anew; earlier choices stay."""
    overrides = ("algorithm=grpo", "rollout.max_staleness=2", "rollout.order=finished", "iterations=60")
    run = settings(model, tmp_path, *overrides, "curriculum=tests.own_curricula:Walk")
    Run(run).killed_in(40)
    second = Run(run).whole()
    state = checkpoints.read_state(second.folder.checkpoint(60))["source"]
    parts = [part["curriculum"] for part in state["order"]["parts"].values()]
    assert sum(part["observed"] for part in parts) == 60 * A_BATCH
    assert sum(part["chosen"] for part in parts) == 60 * A_BATCH + len(state["in_flight"])


def test_quotas_hold_in_every_iteration_and_each_part_has_epochs(model: Path, tmp_path: Path) -> None:
    run = Run(settings(model, tmp_path, "algorithm=grpo")).whole()
    for line, batch in zip(run.lines, run.learner.prompts, strict=True):
        assert Counter(answer.part for answer in batch) == {"easy": 6 * GROUP, "hard": 2 * GROUP}
        assert (line["parts/easy/prompts"], line["parts/hard/prompts"]) == (6, 2)
        assert line["parts/easy/drawn"] == 6 * line["iteration"]
    # 48 of the 60 rows of easy are for training: two in ten go to validation and test. So easy has passed
    # 1200 / 48 = 25 epochs, and hard 400 / 24
    drawn = Counter(answer.prompt for batch in run.learner.prompts for answer in batch)
    assert {drawn[prompt] for prompt in drawn if prompt.startswith("easy/")} == {25 * GROUP}
    assert {drawn[prompt] for prompt in drawn if prompt.startswith("hard/")} == {16 * GROUP, 17 * GROUP}


def test_each_part_is_scored_by_its_own_reward_and_evaluated_by_itself(model: Path, tmp_path: Path) -> None:
    run = Run(settings(model, tmp_path, "algorithm=grpo", "iterations=2")).whole()
    line = run.lines[-1]
    assert "parts/easy/reward/dates/mean" in line and "parts/easy/reward/length/mean" not in line
    assert line["reward/mean"] == pytest.approx(
        (6 * line["parts/easy/reward/mean"] + 2 * line["parts/hard/reward/mean"]) / 8
    )
    metrics = run.folder.evaluations("val")[-1]["metrics"]
    assert {"reward/mean", "parts/easy/reward/mean", "parts/hard/reward/mean"} <= metrics.keys()
    assert "parts/easy/length/mean" in metrics
    rows = run.folder.predictions(2, "val")
    assert Counter(row["part"] for row in rows) == {"easy": 3, "hard": 2}  # in turns


def test_a_curriculum_turns_to_what_is_solved_now_and_then(model: Path, tmp_path: Path) -> None:
    """A third of the prompts comes in each epoch, two thirds in a tenth of them: 10/12 of the draws."""
    run = Run(settings(model, tmp_path, "algorithm=grpo", "curriculum=pass_rate")).whole()
    kinds = [answer.kind for batch in run.learner.prompts for answer in batch]
    early, late = Counter(kinds[: 8 * A_BATCH * GROUP]), Counter(kinds[-100 * A_BATCH * GROUP :])
    assert early[NOW_AND_THEN] / early.total() < 0.45  # the first epoch takes every prompt
    assert late[NOW_AND_THEN] / late.total() == pytest.approx(10 / 12, abs=0.06)
    assert late[SOLVED] > 0 and late[NEVER] > 0  # they come back
    for batch in run.learner.prompts:  # quotas hold all the same
        assert Counter(answer.part for answer in batch) == {"easy": 6 * GROUP, "hard": 2 * GROUP}


def test_dapo_leases_fewer_prompts_that_it_drops(model: Path, tmp_path: Path) -> None:
    """Without pass rates 3 of 3 prompts have to be leased for one that teaches; with them 1.2."""
    plain, learned = (
        Run(settings(model, tmp_path / name, "algorithm=dapo", "iterations=40", *more)).whole().lines
        for name, more in (("plain", []), ("learned", ["curriculum=pass_rate"]))
    )
    assert sum(line["refill/leased"] for line in plain[-20:]) > 20 * A_BATCH * 2.5
    assert sum(line["refill/leased"] for line in learned[-20:]) < 20 * A_BATCH * 1.8


def test_a_part_may_have_a_threshold_of_its_own(model: Path, tmp_path: Path) -> None:
    overrides = ("algorithm=grpo", "curriculum=pass_rate", "task.parts.hard.solved_at=0.0", "iterations=20")
    line = Run(settings(model, tmp_path, *overrides)).whole().lines[-1]
    assert line["parts/hard/curriculum/pass_rate"] == 1.0  # no reward is below 0
    assert line["parts/easy/curriculum/pass_rate"] == pytest.approx(0.5, abs=0.1)


def test_a_plain_task_has_a_curriculum_too(model: Path, tmp_path: Path) -> None:
    files = settings(model, tmp_path).task.parts["easy"].task.data_files  # type: ignore[attr-defined]
    plain = ["algorithm=grpo", "task=prompts", f"task.data_files={files}", "reward=dates"]
    words = [*plain, "curriculum=pass_rate", f"model.path={model}", f"output_dir={tmp_path}", "run_name=run"]
    words += ["rollout.prompts_per_iteration=8", "rollout.group_size=2", "iterations=60", "evaluate_every=0"]
    words += ["save_every=0", "evaluation.num_prompts=2", "tracking.enabled=false"]

    run = Run(run_settings(words)).whole()
    kinds = Counter(answer.kind for batch in run.learner.prompts[30:] for answer in batch)
    assert kinds[NOW_AND_THEN] / kinds.total() == pytest.approx(10 / 12, abs=0.08)
    assert run.lines[-1]["curriculum/prompts"] == 48
