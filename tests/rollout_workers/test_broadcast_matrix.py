"""A broadcast is the push by objects, to the bit, for any ranks of the learner and halves of the engine."""

from pathlib import Path
from typing import Any

import pytest
import ray

from contracts.clients import PublishedWeights
from learner.actors.group import LearnerGroup
from tests.models import make_tiny_model
from tests.rollout_workers.broadcasting import parts, push, update

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]
pytestmark.append(pytest.mark.usefixtures("local_ray"))
TEXTS = [tuple(4 + (3 * i + k) % 9 for k in range(7)) for i in range(8)]
PUSHES = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


def by_objects(learner: LearnerGroup) -> PublishedWeights:
    """The same weights as arrays, as all processes publish them without a group."""
    (manifest, arrays), *_ = [process.publish("float32") for process in learner._processes]
    return PublishedWeights(ray.get(manifest), arrays)


def bytes_of(weights: PublishedWeights) -> dict[str, bytes]:
    arrays: Any = ray.get(weights.arrays)
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_the_push_by_objects(model: Path, ranks: int, halves: int) -> None:
    notes: list[str] = []
    split = {"num_workers": 1, "tensor_parallel_size": halves, "kv_cache_gib": 0.125, "num_threads": 1}
    chosen = parts(model, notes, "vllm", num_processes=ranks, **split)
    with chosen as (learner, fleet):
        first = by_objects(learner)
        for seed in range(PUSHES):
            update(learner, seed)
            sent = push(learner, fleet)
        assert fleet._broadcasts._group is not None and fleet._broadcasts._group.size == 1 + halves
        logprobs, expected = fleet.logprobs(TEXTS), by_objects(learner)
        assert bytes_of(sent.fetch_whole()) == bytes_of(expected) != bytes_of(first)

        fleet.load_weights(first)
        assert fleet.logprobs(TEXTS) != logprobs
        fleet.load_weights(expected)
        assert fleet.logprobs(TEXTS) == logprobs
        assert not any("broke off" in note for note in notes) and fleet.num_quarantined == 0
