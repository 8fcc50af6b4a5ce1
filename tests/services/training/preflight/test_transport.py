"""The way of new weights: what `auto` means on which machine, and what is refused."""

from typing import Any

import pytest

from contracts.errors import InputError
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.training.preflight.deployment import Deployment, Machine, deployment
from services.training.preflight.transport import choose_transport

MODEL = ModelSettings(path="any")
SERVED = ModelSettings.model_validate({"path": "any", "adapter": {"kind": "lora", "serve": "adapter"}})


def on(num_gpus: float, learners: int = 1, engine: str = "vllm", **rollout: Any) -> Deployment:
    rollouts = RolloutSettings.model_validate({"engine": engine, **rollout})
    machine = Machine(num_cores=8, num_gpus=num_gpus)
    return deployment(rollouts, ClusterSettings(), learners, machine, is_encoder_decoder=False)


@pytest.mark.parametrize(
    ("options", "model", "deployed", "expected"),
    [
        ({}, MODEL, on(0), "objects"),
        ({}, MODEL, on(1), "ipc"),
        ({}, MODEL, on(2), "objects"),
        ({}, MODEL, on(2, num_workers=3), "objects"),
        ({}, MODEL, on(1, engine="transformers"), "objects"),
        ({}, SERVED, on(1), "objects"),
        ({"offload": True}, MODEL, on(1), "objects"),
        ({"device": "cpu"}, MODEL, on(1), "objects"),
        ({"push": "changed"}, MODEL, on(1), "objects"),
    ],
)
def test_auto_is_ipc_where_learner_and_workers_share_one_gpu(
    options: dict[str, Any], model: ModelSettings, deployed: Deployment, expected: str
) -> None:
    assert choose_transport(LearnerSettings.model_validate(options), model, deployed) == expected


def test_auto_is_objects_where_shares_may_lie_on_different_gpus() -> None:
    halves = ClusterSettings(learner_gpus=0.5, worker_gpus=0.5)
    rollout = RolloutSettings.model_validate({"engine": "vllm"})
    on_one, on_eight = (
        deployment(rollout, halves, 1, Machine(num_cores=8, num_gpus=number), is_encoder_decoder=False)
        for number in (1, 8)
    )
    assert choose_transport(LearnerSettings(), MODEL, on_one) == "ipc"
    assert choose_transport(LearnerSettings(), MODEL, on_eight) == "objects"


@pytest.mark.parametrize(
    ("deployed", "fitting"),
    [
        (on(1), "ipc"),  # half a GPU each
        (on(2), "nccl"),  # a GPU each
        (on(8, learners=4, num_workers=4), "nccl"),
        (on(5, num_workers=2, tensor_parallel_size=2), "nccl"),
        (on(2, num_workers=3), "objects"),  # two halves of each GPU: a worker may not lie on the learner's
    ],
)
def test_which_of_gpus_suits_follows_from_the_places(deployed: Deployment, fitting: str) -> None:
    for transport in ("nccl", "ipc"):
        learner = LearnerSettings.model_validate({"transport": transport})
        if transport == fitting:
            assert choose_transport(learner, MODEL, deployed) == fitting
            continue
        with pytest.raises(InputError, match=rf"does not suit .* expected learner\.transport={fitting}"):
            choose_transport(learner, MODEL, deployed)


@pytest.mark.parametrize("options", [{"offload": True}, {"device": "cpu"}])
def test_a_learner_in_the_hosts_memory_sends_nothing_between_gpus(options: dict[str, Any]) -> None:
    learner = LearnerSettings.model_validate({"transport": "nccl", **options})
    with pytest.raises(InputError, match="does not go together with learner"):
        choose_transport(learner, MODEL, on(2))


@pytest.mark.parametrize(
    ("transport", "model", "deployed", "message"),
    [
        ("nccl", MODEL, on(0), "needs GPUs"),
        ("ipc", MODEL, on(0), "needs GPUs"),
        ("gloo", MODEL, on(1), "the workers use GPUs"),
        ("gloo", MODEL, on(0, engine="transformers"), "rollout.engine=transformers"),
        ("gloo", SERVED, on(0), "model.adapter.serve=adapter"),
    ],
)
def test_what_cannot_work_is_refused(
    transport: str, model: ModelSettings, deployed: Deployment, message: str
) -> None:
    learner = LearnerSettings.model_validate({"transport": transport})
    with pytest.raises(InputError, match=message):
        choose_transport(learner, model, deployed)


def test_one_that_is_asked_for_is_taken() -> None:
    for transport in ("gloo", "objects"):
        learner = LearnerSettings.model_validate({"transport": transport})
        assert choose_transport(learner, MODEL, on(0)) == transport
    with pytest.raises(ValueError, match="push=changed leaves out unchanged numbers"):
        LearnerSettings(transport="gloo", push="changed")
