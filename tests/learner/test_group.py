"""The learner behind Ray: progress while it works, deadlines, and errors under their own names."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch

from contracts.errors import DiskFull, InputError, LearnerError, LearnerFailed, LearnerLost
from learner.actors.group import LearnerGroup
from learner.actors.process import CALLS_AT_ONCE, LearnerProcess
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.tiny import (
    SMOOTH,
    make_learner,
    make_model,
    plain_logprobs,
    random_rollouts,
    rollout,
    snapshot,
    without_times,
)

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray")]

SETTINGS = LearnerSettings(device="cpu", num_threads=1)
ALGORITHM = PPO(num_epochs=2, minibatch_size=4, optimizer=SMOOTH)


def start(
    path: Path, kind: type[Learner] = Learner, note: Callable[[str], None] = print, **options: float
) -> LearnerGroup:
    actor = ray.remote(LearnerProcess).options(max_concurrency=CALLS_AT_ONCE, num_cpus=0)
    make = partial(kind, ModelSettings(path=str(path)), ALGORITHM, SETTINGS, seed=0, iterations=4)
    return LearnerGroup(
        lambda rendezvous: actor.remote(partial(make, rendezvous=rendezvous)),
        "float32",
        replace(SETTINGS, **options),
        note,
    )


def replace(settings: LearnerSettings, **options: float) -> LearnerSettings:
    return settings.model_copy(update=options)


@pytest.fixture(scope="module")
def group(models: dict[str, Path]) -> LearnerGroup:
    group = start(models["gpt2"])
    group.wait_until_ready()
    return group


def test_behind_ray_the_learner_is_the_same_learner(
    group: LearnerGroup, models: dict[str, Path], tmp_path: Path
) -> None:
    alone = make_learner(models["gpt2"], ALGORITHM, num_threads=1)
    rollouts = random_rollouts(8)
    expected = without_times(alone.update(rollouts))
    progress: list[tuple[str, int, int]] = []
    got = group.update(rollouts, lambda *seen: progress.append(seen))
    assert without_times(got) == expected
    assert all(phase in ("idle", "score", "update") and done <= total for phase, done, total in progress)

    published = group.publish()
    arrays = ray.get(published.arrays)
    assert published.manifest == alone.publish("float32")[0]
    assert all((arrays[name] == array).all() for name, array in alone.publish("float32")[1].items())

    group.save(str(tmp_path))
    second = group.update(rollouts, lambda *_: None)
    group.load(str(tmp_path))
    assert without_times(group.update(rollouts, lambda *_: None)) == without_times(second)
    (tmp_path / "model").mkdir()
    group.export(str(tmp_path / "model"))
    again = make_learner(tmp_path / "model", ALGORITHM)
    alone.update(rollouts)
    with torch.no_grad():
        for one in rollouts:
            assert torch.equal(plain_logprobs(again.pair.lm, one), plain_logprobs(alone.pair.lm, one))


def test_where_early_scores_fail_the_update_scores(
    group: LearnerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = random_rollouts(8)
    assert group.score_early([rollout(0, (1,), ())], 8)  # nothing was generated
    assert group.update(rollouts, lambda *_: None)["rollouts/trained"] == 8
    assert "no longer scored while others are written: " in capsys.readouterr().out
    assert group.score_early(rollouts, 8)
    assert group._early == []


def test_measures_and_log_probabilities_behind_ray_are_the_learners_and_make_progress(
    group: LearnerGroup, models: dict[str, Path], tmp_path: Path
) -> None:
    group.save(str(tmp_path))
    alone = make_learner(models["gpt2"], ALGORITHM, num_threads=1)
    alone.load(str(tmp_path))
    rollouts = random_rollouts(8)
    assert group.logprobs(rollouts) == alone.logprobs(rollouts)
    assert group.measure(rollouts) == alone.measure(rollouts)
    progress: list[tuple[str, int, int]] = []
    group.logprobs(random_rollouts(16000), lambda *seen: progress.append(seen))
    counts = [done for name, done, total in progress if name == "logprobs" and total == 16000]
    assert counts == sorted(counts) and counts[-1] > 0, progress


def test_a_failed_update_is_a_learners_error(group: LearnerGroup) -> None:
    with pytest.raises(LearnerError, match=r"an update on 1 rollouts: .*0 generated"):
        group.update([rollout(0, (1,), ())], lambda *_: None)


def test_a_model_that_cannot_be_used_is_the_users_error(tmp_path: Path) -> None:
    make_model(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"logit_scale": 2.0}))  # Llama ignores it
    group = start(tmp_path)
    with pytest.raises(InputError, match="model type llama: its logits differ by"):
        group.wait_until_ready()


def test_a_dead_learner_is_said_to_have_died(group: LearnerGroup) -> None:
    progress: list[tuple[str, int, int]] = []

    def kill(*seen: Any) -> None:
        progress.append(seen)
        if seen[0] == "score" and seen[1]:
            group.stop()

    with pytest.raises(LearnerLost, match="the learner died while Whetstone waited for an update on 8000"):
        group.update(random_rollouts(8000), kill)
    assert {total for phase, _, total in progress if phase == "score"} == {8000}
    scored = [done for phase, done, _ in progress if phase == "score"]
    assert scored == sorted(scored) and scored[-1] > 0


class Hangs(Learner):
    """Hangs in its second update, and answers."""

    def update(self, rollouts: Any) -> dict[str, float]:
        if self.version == 1:
            self._progress.of("update", 8)(1)
            threading.Event().wait()
        return super().update(rollouts)


class Breaks(Learner):
    def update(self, rollouts: Any) -> dict[str, float]:
        raise MemoryError("8 GiB wanted")


@pytest.mark.long
def test_one_that_answers_and_gets_nowhere_is_lost_and_its_being_slow_is_told(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.processes.waiting.NOTE_EVERY_S", 1.0)
    notes: list[str] = []
    group = start(models["gpt2"], Hangs, notes.append, progress_timeout_s=120.0)
    group.wait_until_ready()
    rollouts = random_rollouts(8)
    group.update(rollouts, lambda *_: None)
    for watched in group._watched:
        watched.settings = replace(SETTINGS, progress_timeout_s=4.0)
    with pytest.raises(LearnerLost, match=r"made no progress for \d+ s: an update on 8 rollouts; "):
        group.update(rollouts, lambda *_: None)
    assert any("s for an update on 8 rollouts: the learner has been at update 1 of 8 for" in n for n in notes)
    group.stop()


def test_what_nobody_expected_is_a_loss_that_says_what_it_was(
    models: dict[str, Path], tmp_path: Path
) -> None:
    group = start(models["gpt2"], Breaks)
    group.wait_until_ready()
    with pytest.raises(LearnerFailed, match=r"an update on 2 rollouts: MemoryError: 8 GiB wanted$") as lost:
        group.update(random_rollouts(2), lambda *_: None)
    assert "in update" in str(lost.value.__cause__)  # the log has where it was
    (tmp_path / "learner.json").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=rf"{tmp_path} could not be written: no space left on device"):
        group.save(str(tmp_path))
    group.stop()


class Loads(Learner):
    """Takes its time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        time.sleep(60)


def test_one_that_stops_while_its_models_load_is_noticed(models: dict[str, Path]) -> None:
    group = start(models["gpt2"], Loads, stall_timeout_s=5.0)
    [pid] = group.pids()

    def stop(phase: str, *_: int) -> None:
        assert phase == "start"
        os.kill(pid, signal.SIGSTOP)

    with pytest.raises(LearnerLost, match=r"no sign of life for \d+ s: the learner to load its models"):
        group.wait_until_ready(stop)
    group.stop()


def test_one_that_hangs_is_told_from_one_that_computes_and_another_takes_its_place(
    models: dict[str, Path], tmp_path: Path
) -> None:
    group = start(models["gpt2"], stall_timeout_s=5.0)
    group.wait_until_ready()
    rollouts = random_rollouts(8)
    first = without_times(group.update(rollouts, lambda *_: None))
    group.save(str(tmp_path))
    second = without_times(group.update(rollouts, lambda *_: None))

    [pid] = group.pids()
    stopped = psutil.Process(pid)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LearnerLost, match=r"no sign of life for \d+ s: an update on 8 rollouts"):
        group.update(rollouts, lambda *_: None)
    group.restart()
    assert group.pids() != [pid]
    psutil.wait_procs([stopped], timeout=30)  # Ray ends it in its own time
    assert not stopped.is_running()
    assert without_times(group.update(rollouts, lambda *_: None)) == first
    group.load(str(tmp_path))
    assert without_times(group.update(rollouts, lambda *_: None)) == second
    group.stop()


def test_one_that_stops_before_anybody_heard_how_far_it_is_is_noticed_within_its_limit(
    models: dict[str, Path],
) -> None:
    """Its start was over when it was waited for, as beside slower parts of a run."""
    group = start(models["gpt2"], stall_timeout_s=3.0)
    ray.wait(group._starting, timeout=60)
    group.wait_until_ready()
    os.kill(group.pids()[0], signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(LearnerLost, match=r"no sign of life for 3 s: .* learner\.stall_timeout_s=3 is the"):
        group.update(random_rollouts(2), lambda *_: None)
    assert time.monotonic() - began < 5.0
    group.stop()


@pytest.mark.long
def test_with_one_of_two_processes_the_learner_is_lost_and_both_are_replaced(
    models: dict[str, Path], tmp_path: Path
) -> None:
    group = start(models["llama"], num_processes=2)
    group.wait_until_ready()
    rollouts = random_rollouts(9)
    first = without_times(group.update(rollouts, lambda *_: None))
    alone = make_learner(models["llama"], ALGORITHM, num_threads=1)
    assert first == pytest.approx(without_times(alone.update(rollouts)), abs=1e-5)
    published, (manifest, arrays) = group.publish(), alone.publish("float32")
    assert published.manifest.dtypes == manifest.dtypes
    assert published.manifest.num_bytes == manifest.num_bytes
    assert published.manifest.probe.logprobs == pytest.approx(manifest.probe.logprobs, abs=1e-5)
    fetched = ray.get(published.arrays)
    assert fetched.keys() == arrays.keys()
    assert all(fetched[name] == pytest.approx(array, abs=1e-5) for name, array in arrays.items())
    group.save(str(tmp_path))
    assert (tmp_path / "policy-00002-of-00002.safetensors").exists()

    pids = group.pids()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(LearnerLost, match=r"process 2 of 2|the learner died"):
        group.update(rollouts, lambda *_: None)
    group.restart()
    assert not set(group.pids()) & set(pids)
    group.load(str(tmp_path))
    second = without_times(group.update(rollouts, lambda *_: None))
    assert second == pytest.approx(without_times(alone.update(rollouts)), abs=1e-5)

    (tmp_path / "model").mkdir()
    group.export(str(tmp_path / "model"))
    again = make_learner(tmp_path / "model", ALGORITHM)
    torch.testing.assert_close(snapshot(again.pair.lm), snapshot(alone.pair.lm), atol=1e-5, rtol=1e-5)
    group.stop()
