"""The learner's side of broadcasts, without a worker: what it keeps, and what it never passes off as new."""

from pathlib import Path

import pytest
import torch

from contracts.errors import LearnerError
from learner.algorithms.ppo import PPO
from learner.publishing import weight_sender
from learner.publishing.weight_sender import WeightSender
from tests.learner.tiny import make_learner, perturb, random_rollouts


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


def test_what_was_sent_before_is_never_passed_off_as_what_is_announced(models: dict[str, Path]) -> None:
    sender = WeightSender(make_learner(models["gpt2"], PPO()))
    sender.announce("float32")
    sender.keep()
    assert sender.whole()
    sender.announce("float32")
    with pytest.raises(LearnerError, match="expected a publication first"):
        sender.whole()


def test_tensors_that_cannot_be_gathered_are_an_error_and_no_broken_broadcast(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = WeightSender(make_learner(models["gpt2"], PPO()))
    manifest = sender.announce("float32")

    def two_and_no_more(*_: object) -> object:
        yield from ((name, torch.zeros(1)) for name in list(manifest.dtypes)[:2])
        raise torch.OutOfMemoryError("no memory for the third")

    class Takes:
        def send(self, tensors: object) -> dict[str, object]:
            return {"number": len(list(tensors))}  # type: ignore[call-overload]

        def release(self) -> None:
            """Hold nothing."""

    monkeypatch.setattr(weight_sender, "wire_tensors", two_and_no_more)
    sender._link = Takes()  # type: ignore[assignment]
    with pytest.raises(LearnerError, match=r"1 of \d+ tensors were gathered: no memory for the third"):
        sender.send()
    with pytest.raises(LearnerError):
        sender.whole()
