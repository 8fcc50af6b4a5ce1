"""Receive broadcast weights with vLLM's weight-transfer engines; only this module calls their API.

    join      init_weight_transfer_engine     in each process of the engine: ranks first_rank and up
    receive   start_weight_update ─▶ update_weights ─▶ finish_weight_update

The engine `nccl` is vLLM's; `gloo` and `ipc` are Whetstone's. The learner's side is
`learner/publishing/weight_links.py`. A test checks the signatures of the vLLM functions that both call.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from contracts.weights import WeightGroup, WeightManifest
from rollout_workers.weights.reloading import reload_model

if TYPE_CHECKING:
    from rollout_workers.weights.own_transfers import Load

OWN = {"gloo": "GlooWeightTransferEngine", "ipc": "SharedWeightTransferEngine"}  # engines by transport


class WeightReceiver:
    """Receiver of one engine's weights, in all of its processes.

    Both methods return why the group broke, or None. If one of several processes raised, the others' answers
    would go to the next caller of vLLM's executor.

    Args:
        executor: vLLM's executor.
        load: loads received tensors if the model is in this process; None: each process reloads its share.
        half: the half of a twin that receives; empty: the whole model.
    """

    def __init__(self, executor: Any, load: "Load | None" = None, half: str = "") -> None:
        self._executor, self._load, self._half = executor, load, half

    def join(self, group: WeightGroup, first_rank: int) -> str | None:
        """Join a group, and leave the old one."""
        arguments = group.transport, init_info(group, first_rank), self._load, self._half
        return _first(self._executor.collective_rpc(_join, args=arguments))

    def receive(self, manifest: WeightManifest, handles: Mapping[str, Any]) -> str | None:
        """Receive the weights of a manifest, and replace the model's; after a failure, load all anew.

        Args:
            handles: additions of the learner's processes to the manifest: where the memory is (ipc).
        """
        update = update_info(manifest) | dict(handles)
        return _first(self._executor.collective_rpc(_receive, args=(update,)))


def init_info(group: WeightGroup, first_rank: int) -> dict[str, Any]:
    """Return the arguments with which vLLM's engine joins a group of this transport.

    >>> init_info(WeightGroup("ipc", "", 2, 60.0), 1)
    {}
    """
    if group.transport == "ipc":
        return {}
    places = {"rank_offset": first_rank, "world_size": group.size}
    if group.transport == "nccl":
        return {"nccl_unique_id_b64": group.address, "packed": True, **places}
    return {"address": group.address, "patience_s": group.patience_s, **places}


def update_info(manifest: WeightManifest) -> dict[str, Any]:
    """Return the description of all tensors, in the order of sending."""
    assert manifest.shapes is not None, "expected the manifest of a broadcast"
    return {
        "names": list(manifest.dtypes),
        "dtype_names": list(manifest.dtypes.values()),
        "shapes": [list(manifest.shapes[name]) for name in manifest.dtypes],
    }


def _first(answers: list[str | None]) -> str | None:
    return next((answer for answer in answers if answer is not None), None)


# ---- below: in each vLLM process ----


def _join(worker: Any, transport: str, init: dict[str, Any], load: "Load | None", half: str) -> str | None:
    worker = getattr(worker, "worker", worker)  # an attribute set on vLLM's wrapper would stay there
    if worker.weight_transfer_engine is None:
        worker.weight_transfer_engine = _made_engine(worker, transport, load, half)
    worker.weight_transfer_engine.shutdown()  # vLLM's NCCL engine would keep the old group open
    try:
        worker.init_weight_transfer_engine(init)
    except RuntimeError as error:
        return str(error)
    return None


def _made_engine(worker: Any, transport: str, load: "Load | None", half: str) -> Any:
    """Make the engine that vLLM makes at its start, but late, so that each process knows ours."""
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    backend = f"whetstone_{transport}" if transport in OWN else transport  # vLLM has an `ipc`, too
    if transport in OWN and backend not in Factory._registry:
        Factory.register_engine(backend, "rollout_workers.weights.own_transfers", OWN[transport])
    config, model = worker.vllm_config, worker.model_runner.get_model().get_submodule(half)
    engine = Factory.create_engine(WeightTransferConfig(backend=backend), config, worker.device, model)
    if transport in OWN:
        engine.load = load or partial(reload_model, config, model)
    return engine


def _receive(worker: Any, update: dict[str, Any]) -> str | None:
    from vllm.config import set_current_vllm_config

    worker = getattr(worker, "worker", worker)
    worker.start_weight_update()
    try:
        worker.update_weights(update)
    except (RuntimeError, ValueError) as error:  # ValueError: vLLM lacks something in `update`
        worker.weight_transfer_engine.shutdown()  # members that wait for this process notice
        with set_current_vllm_config(worker.vllm_config):  # put every layer back, with the received part
            worker.weight_transfer_engine.finish_weight_update()
        return str(error)
    worker.finish_weight_update()
    if worker.device.type != "cpu":
        torch.accelerator.empty_cache()  # frees the receive buffers; keys and values may wake next
    return None
