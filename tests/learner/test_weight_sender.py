"""The learner's side of broadcasts, without a worker: what it keeps, and what it never passes off as new."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import LearnerError
from contracts.weights import WeightGroup
from learner.algorithms.ppo import PPO
from learner.publishing import weight_sender
from learner.publishing.weight_sender import WeightSender
from tests.learner.tiny import make_learner, perturb, random_rollouts


class Takes:
    """Connection that takes all tensors, or breaks off at the first."""

    def __init__(self, breaks: bool = False) -> None:
        self.is_open, self._breaks = True, breaks

    def send(self, tensors: Any, laid: Any) -> dict[str, object]:
        if self._breaks:
            raise RuntimeError("a member is gone")
        return {"number": len(list(tensors))}

    def release(self) -> None:
        """Hold nothing."""

    def leave(self) -> None:
        self.is_open = False


def test_what_is_kept_is_what_the_object_path_publishes_and_an_update_leaves_it_alone(
    models: dict[str, Path],
) -> None:
    learner = make_learner(models["llama_tied"], PPO(num_epochs=1))
    perturb(learner.pair.lm)
    sender = WeightSender(learner)
    announced = sender.announce("bfloat16")
    manifest, arrays = learner.publish("bfloat16")
    expected = {name: array.tobytes() for name, array in arrays.items()}
    sender.keep()
    assert (announced.dtypes, announced.num_bytes) == (manifest.dtypes, manifest.num_bytes)
    assert announced.shapes == {name: array.shape for name, array in arrays.items()}
    learner.update(random_rollouts(3))
    whole, kept = sender.whole()
    assert whole == announced and whole.version == 0
    assert {name: array.tobytes() for name, array in kept.items()} == expected


def test_a_release_waits_until_all_is_kept_since_an_update_comes_next(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy begins only when somebody waits for it: who does not wait finds it unfinished."""
    sender = WeightSender(make_learner(models["gpt2"], PPO()))
    kept, is_awaited = sender._kept, threading.Event()
    kept._room = threading.Semaphore(1000)  # all may wait
    prepare, settle = kept._large_enough, kept.settle
    monkeypatch.setattr(kept, "_large_enough", lambda: prepare() if is_awaited.wait() else None)
    monkeypatch.setattr(kept, "settle", lambda: (is_awaited.set(), settle()))
    announced = sender.announce("float32")
    is_awaited.clear()  # by what was kept before
    sender.send()
    assert kept._thread is not None and kept._thread.is_alive()
    sender.release()
    try:
        assert not kept._thread.is_alive() and kept._manifest == announced
    finally:
        is_awaited.set()


def test_what_was_sent_before_is_never_passed_off_as_what_is_announced(models: dict[str, Path]) -> None:
    sender = WeightSender(make_learner(models["gpt2"], PPO()))
    sender.announce("float32")
    sender.keep()
    assert sender.whole()
    sender.announce("float32")
    with pytest.raises(LearnerError, match="publish first"):
        sender.whole()


def test_tensors_that_cannot_be_gathered_are_an_error_and_no_broken_broadcast(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = WeightSender(make_learner(models["gpt2"], PPO()))
    manifest = sender.announce("float32")

    def two_and_no_more(*_: object) -> object:
        yield from ((name, torch.zeros(1)) for name in list(manifest.dtypes)[:2])
        raise torch.OutOfMemoryError("no memory for the third")

    monkeypatch.setattr(weight_sender, "wire_tensors", two_and_no_more)
    sender._link = Takes()
    with pytest.raises(LearnerError, match=r"1 of \d+ tensors were gathered: no memory for the third"):
        sender.send()
    with pytest.raises(LearnerError):
        sender.whole()


WAYS: dict[str, Callable[[WeightSender], Any]] = {
    "another group": lambda sender: sender.join(WeightGroup("gloo", "tcp://127.0.0.1:9", 2, 0.01)),
    "arrays instead": lambda sender: sender.keep(),
    "a broken broadcast": lambda sender: sender.send(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_group_is_left_before_its_connection_is_forgotten(models: dict[str, Path], way: str) -> None:
    """NCCL's groups do not end by themselves; each that is left behind keeps its memory and its threads."""
    sender, link = WeightSender(make_learner(models["gpt2"], PPO())), Takes(way == "a broken broadcast")
    sender.announce("float32")
    sender._link = link
    WAYS[way](sender)
    assert not link.is_open and sender._link is None


@pytest.mark.parametrize("shares_gpu", [True, False])
def test_a_worker_that_wakes_on_the_learners_gpu_finds_its_memory(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, shares_gpu: bool
) -> None:
    """A push gathers whole tables and scores a probe; PyTorch keeps their memory for the next time."""
    emptied: list[str] = []
    learner = make_learner(models["gpt2"], PPO(), shares_gpu=shares_gpu)
    sender = WeightSender(learner)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(doing))
    doing = "arrays"
    learner.publish("bfloat16")
    doing = "kept arrays"
    sender.announce("bfloat16")
    sender.keep()
    doing = "a broadcast"
    sender.announce("bfloat16")
    sender._link = Takes()
    sender.send()
    sender.release()
    assert emptied == (["arrays", "kept arrays", "a broadcast"] if shares_gpu else [])
