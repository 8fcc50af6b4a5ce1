"""Changes found in the learner and applied to a worker's copy reproduce the published weights bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from contracts.errors import LearnerError, WeightsError
from contracts.rollout import Rollout
from contracts.weights import ChangedElements, Probe, WeightManifest
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.publishing.changed_elements import Array, changes, num_bytes
from learner.publishing.last_published import LastPublished
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.weights.received_weights import ReceivedWeights
from tests.learner.adapted import adapted_learner, move
from tests.learner.tiny import make_learner, perturb, random_rollouts

SPECIAL = {  # zeros, infinities, a quiet and a signalling NaN, the smallest number, one
    np.uint16: [0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 1, 0x3F80],
    np.uint32: [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 1, 0x3F800000],
}

MANIFEST = WeightManifest(1, {}, 0, Probe((), (), 0.0))
STEP = PPO(num_epochs=1, learning_rate=1e-5)


def bits_of(array: Array) -> Array:
    return array.reshape(-1).view(f"u{array.itemsize}")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """A parameter before and after, of which none, some or all elements are others."""
    kind: Any = draw(st.sampled_from([np.uint16, np.uint32]))
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = rng.integers(0, np.iinfo(kind).max, shape, kind, endpoint=True)
    old = np.where(rng.random(shape) < 0.3, rng.choice(np.array(SPECIAL[kind], kind), shape), old)
    others = rng.choice(np.array(SPECIAL[kind], kind), shape)
    new = np.where(rng.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.4, 1.0])), others, old)
    as_sent = np.uint16 if kind is np.uint16 else np.float32
    return np.asarray(old, kind).view(as_sent), np.asarray(new, kind).view(as_sent)


@given(pairs())
@example((np.array([0.0, np.nan], np.float32), np.array([-0.0, np.nan], np.float32)))
def test_changes_laid_into_the_old_are_the_new_to_the_bit(pair: tuple[Array, Array]) -> None:
    old, new = pair
    learner, worker = LastPublished(), ReceivedWeights()
    before = bits_of(old).copy()
    for array in (old, new):
        sent = learner.exchange([("h.0.weight", array)])
        manifest = learner.sign(MANIFEST, sent)
        assert manifest.num_bytes == sum(map(num_bytes, sent.values())) <= array.nbytes
        taken = worker.take(manifest, sent)
    if sent:
        assert (bits_of(taken["h.0.weight"]) == bits_of(new)).all()
    assert bool(sent) == bool((bits_of(old) != bits_of(new)).any())
    assert (bits_of(learner.whole()[1]["h.0.weight"]) == bits_of(new)).all()
    assert (bits_of(old) == before).all()  # what was sent is not written to


def test_what_changed_nearly_everywhere_goes_whole() -> None:
    old = np.zeros(12, np.uint16)
    few, many = old.copy(), old.copy()
    few[:3], many[:4] = 1, 1  # 6 bytes an element against 24 in all
    change = changes(old, few)
    assert isinstance(change, ChangedElements)
    assert (change.indices.tolist(), change.values.tolist()) == ([0, 1, 2], [1, 1, 1])
    assert changes(old, many) is many and changes(old, old.copy()) is None


def as_bits(learner: Learner, dtype: torch.dtype) -> dict[str, list[int]]:
    kind = torch.int16 if dtype == torch.bfloat16 else torch.int32
    return {
        name: p.detach().to(dtype).view(kind).flatten().tolist()
        for name, p in learner.pair.lm.named_parameters()
    }


def held(arrays: dict[str, Array]) -> dict[str, list[int]]:
    return {name: array.reshape(-1).view(f"i{array.itemsize}").tolist() for name, array in arrays.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_worker_that_gets_changes_alone_has_the_learners_weights(
    models: dict[str, Path], tmp_path: Path, dtype: torch.dtype
) -> None:
    """Over updates, a publication that nobody asked for twice, and a checkpoint: the same version again."""
    engine = str(dtype).removeprefix("torch.")
    learner, copy = make_learner(models["llama"], STEP, push="changed", num_threads=1), {}
    worker, pushes, saved = ReceivedWeights(), [], False
    learner.save(str(tmp_path))
    for rollouts in (None, 1, None, 2, "load", 1):
        if rollouts == "load":
            learner.load(str(tmp_path))
        elif rollouts:
            learner.update(random_rollouts(4, seed=int(rollouts)))
        manifest, sent = learner.publish(engine)
        assert manifest.base == (pushes[-1] if pushes else None)
        pushes.append(manifest.push)
        copy |= worker.take(manifest, sent)
        assert held(copy) == as_bits(learner, dtype)
        assert sent.keys() <= manifest.dtypes.keys() and set(manifest.dtypes.values()) == {engine}
        saved |= 0 < manifest.num_bytes < 0.7 * sum(array.nbytes for array in copy.values())
    assert len(set(pushes)) == 6 and saved == (dtype == torch.bfloat16)


def test_whoever_joins_late_gets_what_was_published_and_not_what_has_become_of_it(
    models: dict[str, Path],
) -> None:
    learner = make_learner(models["gpt2"], STEP, push="changed")
    with pytest.raises(LearnerError, match="before any were published"):
        learner.published_whole()
    learner.publish("float32")
    learner.update(random_rollouts(3))
    changed, _ = learner.publish("float32")
    published = as_bits(learner, torch.float32)
    perturb(learner.pair.lm)  # as an update that is under way
    manifest, arrays = learner.published_whole()
    assert held(arrays) == published != as_bits(learner, torch.float32)
    assert (manifest.version, manifest.push, manifest.base) == (changed.version, changed.push, None)
    assert manifest.num_bytes == sum(array.nbytes for array in arrays.values()) >= changed.num_bytes
    late = ReceivedWeights()
    assert held(dict(late.take(manifest, arrays))) == published
    following, sent = learner.publish("float32")
    assert held(dict(late.take(following, sent))) == as_bits(learner, torch.float32)


def test_changes_to_other_weights_are_refused(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], STEP, push="changed")
    whole, arrays = learner.publish("float32")
    changed, sent = learner.publish("float32")
    worker = ReceivedWeights()
    with pytest.raises(WeightsError, match=f"changes to push {whole.push}, but this worker has none"):
        worker.take(changed, sent)
    worker.take(whole, arrays)
    assert worker.take(changed, sent) == {}
    with pytest.raises(WeightsError, match=f"this worker has {changed.push}; expected that push"):
        worker.take(changed, sent)


def test_a_publication_that_broke_off_is_no_base(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], STEP, push="changed")
    learner.publish("float32")
    parameters = dict(learner.pair.lm.named_parameters())
    last = learner._last_published
    assert last is not None

    def breaks() -> Any:
        yield "transformer.wte.weight", parameters["transformer.wte.weight"].detach().numpy() + 1
        raise RuntimeError("a rank was lost, say")

    with pytest.raises(RuntimeError):
        last.exchange(breaks())
    manifest, arrays = learner.publish("float32")
    assert manifest.base is None and held(dict(arrays)) == as_bits(learner, torch.float32)


def test_frozen_layers_do_not_travel_again(models: dict[str, Path]) -> None:
    model = ModelSettings(path=str(models["llama"]), trainable_layers=1)
    learner = Learner(model, STEP, LearnerSettings(device="cpu", push="changed"), seed=0, iterations=2)
    learner.publish("float32")
    rollouts: list[Rollout] = random_rollouts(3)
    learner.update(rollouts)
    _, sent = learner.publish("float32")
    assert sent and all(name.startswith(("model.layers.1.", "model.norm.", "lm_head.")) for name in sent)


def test_an_adapter_that_is_served_travels_whole_and_as_it_is(models: dict[str, Path]) -> None:
    served = {"serve": "adapter"}
    learner = adapted_learner(models["llama"], STEP, adapter_options=served, push="changed")
    for _ in range(2):
        manifest, arrays = learner.publish("bfloat16")
        assert manifest.push is None and manifest.base is None and set(arrays) == set(manifest.dtypes)
        assert all("lora_" in name for name in arrays) and set(manifest.dtypes.values()) == {"float32"}


def test_a_merged_adapter_travels_as_what_has_changed_of_the_sums(models: dict[str, Path]) -> None:
    learner = adapted_learner(models["llama"], STEP, push="changed")
    worker = ReceivedWeights()
    worker.take(*learner.publish("bfloat16"))
    move(learner.pair.policy, 1e-4)
    manifest, sent = learner.publish("bfloat16")
    taken = worker.take(manifest, sent)
    alone = adapted_learner(models["llama"], STEP)
    move(alone.pair.policy, 1e-4)
    arrays = alone.publish("bfloat16")[1]
    assert taken.keys() <= arrays.keys() and manifest.num_bytes > 0
    assert all((taken[name] == arrays[name]).all() for name in taken)
    assert any(isinstance(array, ChangedElements) for array in sent.values())
