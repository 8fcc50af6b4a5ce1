"""Weights that go from a learner to vLLM through a group: the same bytes as by arrays, and no half push."""

import base64
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from contracts.network.flat_buffer import Layout
from contracts.rollout import MaskRule
from contracts.weights import Probe, WeightGroup, WeightManifest
from learner.algorithms.ppo import PPO
from learner.distributed.rendezvous import MeetingPoint
from learner.publishing import weight_links
from learner.publishing.weight_publisher import as_array, wire_tensors
from learner.publishing.weight_sender import WeightSender
from rollout_workers.weights.reloading import reload_model
from rollout_workers.weights.weight_transfer import init_info, update_info
from tests.learner.tiny import make_learner
from tests.rollout_workers.conftest import versions
from tests.rollout_workers.generation import (
    NAMES,
    CausalName,
    finish,
    load,
    load_lm,
    perturb,
    prompts_of_many_lengths,
    weights,
    worst_difference,
)

pytestmark = pytest.mark.vllm
PATIENCE_S = 60.0


@contextmanager
def beside(act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run `act` in a thread beside the block; the list has its result when the block has ended."""
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(act()))
    thread.start()
    yield outcomes
    thread.join(PATIENCE_S * 2)
    assert outcomes, "it raised, or has not ended"


def sender_of(model: Path, seed: int) -> WeightSender:
    learner = make_learner(model, PPO())
    perturb(learner.pair.lm, seed)
    return WeightSender(learner)


def meet(sender: WeightSender, engine: Any, patience_s: float = PATIENCE_S) -> MeetingPoint:
    """Let a learner and an engine join a group, which is there as long as its meeting point."""
    point = MeetingPoint("127.0.0.1", 2)
    group = WeightGroup("gloo", point.for_rank(0).address, 2, patience_s)
    with beside(lambda: sender.join(group)) as joined:
        assert engine.join_group(group, 1) is None
    assert joined == [None]
    return point


def push(sender: WeightSender, engine: Any) -> WeightManifest:
    manifest = replace(sender.announce("float32"), version=next(versions))
    with beside(sender.send) as sent:
        assert engine.receive_weights(manifest, {}) is None
    assert sent == [({}, None)]
    return manifest


def written(engine: Any) -> Any:
    """Scores of texts, and what is generated: equal only where the weights are equal to the bit."""
    texts = [tuple(3 + (5 * i + 7 * k) % 20 for k in range(2 + 9 * i)) for i in range(4)]
    generations = finish(engine, prompts_of_many_lengths(12, max_tokens=8))
    return engine.logprobs(texts), [
        (generations[id].tokens, generations[id].behavior_logprobs) for id in sorted(generations)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_broadcast_equals_a_push_of_arrays_to_the_bit(
    name: CausalName, models: dict[str, Path], get_engine: Callable[..., Any]
) -> None:
    engine, sender = get_engine("vllm", name), sender_of(models[name], seed=1)
    load(engine, load_lm(models[name]), next(versions))
    point = meet(sender, engine)
    before = written(engine)
    manifest = push(sender, engine)
    assert engine.weight_version == manifest.version
    broadcast = written(engine)

    load(engine, load_lm(models[name]), next(versions))
    assert written(engine) == before != broadcast
    whole, arrays = sender.whole()
    engine.load_weights(replace(whole, version=next(versions)), arrays)
    assert written(engine) == broadcast
    del point


@pytest.mark.parametrize("name", NAMES)
def test_one_buffer_on_a_shared_gpu_equals_a_push_of_arrays_to_the_bit(
    name: CausalName,
    models: dict[str, Path],
    get_engine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The buffer lies on the CPU, and its handle is the buffer itself: all else is what a GPU runs."""
    monkeypatch.setattr(weight_links, "_new_buffer", lambda size: torch.full((size,), 255, dtype=torch.uint8))
    monkeypatch.setattr(weight_links, "_exported", lambda flat: {"GPU-a": flat})
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr("rollout_workers.weights.own_transfers.opened", lambda handles, _: handles["GPU-a"])
    engine, sender = get_engine("vllm", name), sender_of(models[name], seed=8)
    engine._receiver._executor.driver_worker.worker.weight_transfer_engine = None  # of another transport
    assert sender.join(WeightGroup("ipc", "", 2, PATIENCE_S)) is None
    assert engine.join_group(WeightGroup("ipc", "", 2, PATIENCE_S), 1) is None
    for seed in (8, 9):
        perturb(sender._learner.pair.lm, seed)
        manifest = replace(sender.announce("float32"), version=next(versions))
        handles, broken = sender.send()
        assert broken is None and len(handles["ipc_handles"]) == 1
        assert engine.receive_weights(manifest, handles) is None
        sender.release()
        handles["ipc_handles"][0]["GPU-a"].fill_(255)  # NaN: whoever reads it after this would show
        shared = written(engine)
    assert engine.weight_version == manifest.version and engine._loaders["policy"].num_direct

    load(engine, load_lm(models[name]), next(versions))
    assert written(engine) != shared
    whole, arrays = sender.whole()
    engine.load_weights(replace(whole, version=next(versions)), arrays)
    assert written(engine) == shared
    engine._receiver._executor.driver_worker.worker.weight_transfer_engine = None


def test_twenty_pushes_keep_the_ratio_at_one_and_leak_nothing(
    models: dict[str, Path], get_engine: Callable[..., Any]
) -> None:
    engine, sender = get_engine("vllm", "llama"), sender_of(models["llama"], seed=2)
    lm, requests = sender._learner.pair.lm, prompts_of_many_lengths(6, max_tokens=6)
    point = meet(sender, engine)
    push(sender, engine)
    open_files = psutil.Process().num_fds()
    for seed in range(20):
        perturb(lm, seed, scale=0.02)
        push(sender, engine)
        worst = worst_difference(lm, requests, finish(engine, requests))
        assert math.exp(worst) == pytest.approx(1.0, abs=1e-4)  # of sampler and learner, at each token
    # a leak would be of one or more a push; other threads of this process open files, too
    assert psutil.Process().num_fds() < open_files + 10
    del point


def test_the_policys_half_of_a_twin_receives_and_the_mask_stays(
    models: dict[str, Path], get_engine: Callable[..., Any]
) -> None:
    engine = get_engine("vllm", "llama", MaskRule(top_p=0.7, min_tokens_to_keep=1))
    policy, mask = load_lm(models["llama"]), load_lm(models["llama"])
    perturb(mask, seed=4)
    engine.load_weights(*weights(policy, next(versions), mask_version=1))
    engine.load_mask(*weights(mask, next(versions), mask_version=1))
    sender = sender_of(models["llama"], seed=3)
    point = meet(sender, engine)
    push(sender, engine)
    broadcast = written(engine)

    _, arrays = sender.whole()
    for lm, load_half in ((policy, engine.load_weights), (mask, engine.load_mask)):
        load_half(*weights(lm, next(versions), mask_version=2))
    assert written(engine) != broadcast
    manifest, _ = weights(policy, next(versions), mask_version=2)
    engine.load_weights(manifest, arrays)
    assert written(engine) == broadcast
    del point


def test_a_broadcast_that_breaks_off_leaves_the_old_weights_and_arrays_mend_it(
    models: dict[str, Path], get_engine: Callable[..., Any]
) -> None:
    engine, sender = get_engine("vllm", "llama"), sender_of(models["llama"], seed=5)
    point = meet(sender, engine)
    push(sender, engine)
    before, version = written(engine), engine.weight_version
    perturb(sender._learner.pair.lm, seed=6)
    manifest = replace(sender.announce("float32"), version=next(versions))
    with beside(lambda: send_three(sender)):
        broken = engine.receive_weights(manifest, {})
    assert broken is not None and engine.weight_version == version
    assert written(engine) == before

    engine.load_weights(manifest, sender_arrays(sender))
    assert engine.weight_version == manifest.version and written(engine) != before
    del point
    point = meet(sender, engine)
    expected = written(engine)
    push(sender, engine)
    assert written(engine) == expected
    del point


def send_three(sender: WeightSender) -> bool:
    """Send three tensors, then leave as a learner does that dies."""
    link = sender._link
    assert link is not None
    link.send(islice(wire_tensors(sender._learner.pair.lm, "float32"), 3), Layout({}, 0))
    sender._link = None
    del link
    return True


def sender_arrays(sender: WeightSender) -> dict[str, Any]:
    return {name: as_array(tensor) for name, tensor in wire_tensors(sender._learner.pair.lm, "float32")}


def test_weights_wake_before_keys_and_values_do(
    models: dict[str, Path], get_engine: Callable[..., Any]
) -> None:
    """vLLM's own books are true on a CPU, too, though it frees nothing there."""
    engine, sender = get_engine("vllm", "llama"), sender_of(models["llama"], seed=7)
    point = meet(sender, engine)
    executor = engine._engine.model_executor
    engine.sleep()
    assert executor.sleeping_tags == {"weights", "kv_cache"}
    push(sender, engine)
    assert executor.sleeping_tags == {"kv_cache"}  # the learner frees its memory now
    engine.logprobs([(4, 5, 6)])
    assert not executor.sleeping_tags
    del point


def test_a_reload_has_vllms_config_at_hand(
    models: dict[str, Path], get_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import get_current_vllm_config_or_none

    engine, seen = get_engine("vllm", "llama"), list[Any]()
    inner = type(engine._model).load_weights

    def load_weights(model: Any, weights: Any) -> Any:
        seen.append(get_current_vllm_config_or_none())
        return inner(model, weights)

    monkeypatch.setattr(type(engine._model), "load_weights", load_weights)
    tensors = {name: p.detach().clone() for name, p in load_lm(models["llama"]).named_parameters()}
    reload_model(engine._engine.vllm_config, engine._model, tensors)
    assert seen == [engine._engine.vllm_config]


def test_vllms_functions_are_called_as_this_version_has_them() -> None:
    """Names of the arguments that both sides give, in order; a new version of vLLM is to be read first."""
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
    from vllm.distributed.weight_transfer import nccl_common, nccl_engine, packed_tensor
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory
    from vllm.v1.worker.gpu_worker import Worker

    def names(function: Any) -> list[str]:
        return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]

    assert names(WeightTransferConfig) == ["backend"]
    assert names(Factory.register_engine) == ["name", "module_path_or_cls", "class_name"]
    assert names(Factory.create_engine) == ["config", "vllm_config", "device", "model"]
    assert "nccl" in Factory._registry
    assert names(Worker.init_weight_transfer_engine) == ["init_info"]
    assert names(Worker.update_weights) == ["update_info"]
    assert names(Worker.start_weight_update) == names(Worker.finish_weight_update) == []
    assert names(nccl_common.uid_init_process_group) == [
        *("nccl_unique_id_bytes", "rank", "world_size", "device"),
    ]
    producer = inspect.signature(packed_tensor.packed_nccl_broadcast_producer).parameters
    assert list(producer) == [
        *("iterator", "group", "src", "post_iter_func", "buffer_size_bytes", "num_buffers"),
    ]
    assert names(NCCLLibrary.ncclGetUniqueId) == []

    # The weights that are sent, as vLLM's engines read them.
    some = WeightManifest(1, {"a": "bfloat16"}, 4, Probe((), (), 0.1), shapes={"a": (2,)})
    uid = base64.b64encode(bytes(128)).decode()
    info = nccl_common.NCCLWeightTransferInitInfo(**init_info(WeightGroup("nccl", uid, 3, 60.0), 2))
    assert (info.rank_offset, info.world_size, info.packed) == (2, 3, True)
    assert info.packed_buffer_size_bytes == producer["buffer_size_bytes"].default
    assert info.packed_num_buffers == producer["num_buffers"].default
    assert nccl_engine.NCCLWeightTransferUpdateInfo(**update_info(some)).shapes == [[2]]
    assert init_info(WeightGroup("ipc", "", 2, 60.0), 1) == {}
