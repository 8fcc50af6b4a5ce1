"""Fill in what a run leaves open about its GPUs' memory, or refuse the run and say what fits instead."""

import json
import math
from collections.abc import Iterator
from typing import Any

from contracts.errors import InputError
from contracts.settings import with_options
from learner.algorithms.base import Algorithm, Traits
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.models.shape import num_heads, shape_of
from services.preflight.capacity.fitting import Fit, Misfit, Options, fit
from services.preflight.capacity.gpu_memory import Texts
from services.preflight.capacity.memory_model import MemoryNeeds, num_parameters, share_and_base
from services.preflight.checks.reference_checks import num_parameters_of_reference
from services.preflight.deployment import Machine, deployment_of
from services.preflight.placement import fits

RANKS = (1, 2, 4, 8, 12, 14)  # processes of a learner that are tried, fewest first
PARTS = (1, 2, 4, 8)  # GPUs of a worker
ON_THEIR_WAY, PUSHED_BYTES = 2, 2  # versions of the weights in Ray's object store; a parameter in bfloat16
UNKNOWN_SHARE = 0.45  # where a GPU's memory is not known: of all workers beside the learner


def fitted(settings: RunSettings, model: ModelFiles, machine: Machine) -> tuple[RunSettings, Fit | None]:
    """Return the settings with which the run fits onto the machine's GPUs, and what then lies on them.

    Where the engine is not vLLM, or a size is not known, only a shared GPU changes anything. Without GPUs
    nothing does.

    Raises:
        InputError: nothing fits; with the sum, and overrides with which it does.
    """
    found = choice(settings, model, machine)
    if found is None:
        beside = deployment_of(settings, model, machine).placement.workers_beside_a_learner
        return with_options(settings, _shared(settings.rollout, settings.learner, beside)), None
    if isinstance(found, Fit):
        return with_options(settings, found.chosen), found
    instead = alternative(settings, model, machine)
    if instead is None:
        way_out = "nothing that was tried fits this machine; expected a smaller model, or more GPUs"
    else:
        way_out = f"expected {' '.join(written(instead[0]))}, with which it fits"
    raise InputError(f"too little memory on the GPUs: {found.words}; {way_out}")


def choice(settings: RunSettings, model: ModelFiles, machine: Machine) -> Fit | Misfit | None:
    """Return what fits, or that nothing does; None where nothing is to be chosen."""
    deployed = deployment_of(settings, model, machine)
    on_gpus = deployed.learner_on_gpu and deployed.workers_on_gpu and settings.learner.device != "cpu"
    asked = settings.model, settings.algorithm, settings.learner, settings.rollout
    needs, shape = memory_needs(*asked, model), shape_of(model)
    if not (on_gpus and machine.gpu_bytes and needs and shape and deployed.engine == "vllm"):
        return None
    is_open = settings.plays or settings.data is not None
    rollouts = None if is_open else settings.rollout.prompts_per_iteration * settings.group_size
    return fit(needs, shape, Texts(model.window, rollouts), deployed)


def memory_needs(
    asked: ModelSettings,
    algorithm: Algorithm,
    learner: LearnerSettings,
    rollout: RolloutSettings,
    model: ModelFiles,
) -> MemoryNeeds | None:
    """Return what the run's memory depends on; None: the model's size is not known."""
    count, _ = num_parameters(model)
    if not count:
        return None
    share, base = share_and_base(asked, model, count)
    others = num_parameters_of_reference(asked)
    return MemoryNeeds(asked, algorithm, learner, rollout, count, share, base, others)


def _shared(rollout: RolloutSettings, learner: LearnerSettings, beside: int) -> Options:
    """Return sleep and a share where learner and worker share a GPU whose memory is not known.

    Args:
        beside: workers on the GPU of a learner's process.
    """
    if not beside or rollout.max_staleness or learner.device == "cpu":
        return {}
    share = math.floor(100 * UNKNOWN_SHARE / beside) / 100
    chosen = {"rollout.sleep": True, "rollout.gpu_memory_utilization": share}
    return {k: v for k, v in chosen.items() if k.partition(".")[2] not in rollout.model_fields_set}


def alternative(settings: RunSettings, model: ModelFiles, machine: Machine) -> tuple[Options, Fit] | None:
    """Return the first layout, offload or adapter with which the run fits; None: there is none."""
    traits, num_gpus = settings.algorithm.traits, int(machine.num_gpus)
    offloads = settings.learner.transport in ("auto", "objects")  # a broadcast needs weights on a GPU
    for options in _alternatives(settings.model, settings.cluster, traits, model, num_gpus):
        changed = with_options(settings, options)
        placed = deployment_of(changed, model, machine).placement
        if not fits(placed, num_gpus, machine.num_cores):
            continue
        found = choice(changed, model, machine)
        if not isinstance(found, Fit):
            continue
        parts = changed.model, changed.algorithm, changed.learner, changed.rollout
        sleepers = changed.rollout.num_workers if found.sleeps else 0
        has_room = offloads and _host_has_room(memory_needs(*parts, model), sleepers, machine.host_bytes)
        if has_room or not changed.learner.offload:
            return options, found
    return None


def _host_has_room(needs: MemoryNeeds | None, sleepers: int, host_bytes: float | None) -> bool:
    """Tell whether one node's memory is known to hold what is offloaded, pushed, and put to sleep.

    Args:
        sleepers: workers that keep their weights there while they sleep.
    """
    if needs is None or host_bytes is None:
        return False
    copied = (ON_THEIR_WAY + sleepers) * PUSHED_BYTES * needs.num_parameters
    return sum(needs.of_learner().values()) + copied <= host_bytes


def _alternatives(
    asked: ModelSettings, cluster: ClusterSettings, traits: Traits, model: ModelFiles, num_gpus: int
) -> Iterator[dict[str, Any]]:
    """Yield layouts of the run as it is, then offloaded ones, then those of LoRA and QLoRA of one process.

    Offloading trains the same model, more slowly; an adapter trains less of it.
    """
    shares = ("cluster.learner_gpus", "cluster.worker_gpus")
    open_again = {} if cluster.learner_gpus is None else dict.fromkeys(shares)
    one = asked.adapter.trains or asked.trainable_layers is not None or model.is_encoder_decoder
    layouts = list(_layouts(num_gpus, num_heads(model), most_ranks=1 if one else num_gpus))
    yield from (layout | open_again for layout in layouts)
    if not one and traits.update != "trust_region":
        yield from ({"learner.offload": True} | layout | open_again for layout in layouts)
    if one or traits.masks:
        return
    kinds = ("lora",) if traits.update == "trust_region" else ("lora", "qlora")
    for kind in kinds:
        for layout in _layouts(num_gpus, num_heads(model), most_ranks=1):
            yield {"model.adapter.kind": kind} | layout | open_again


def _layouts(num_gpus: int, heads: int, most_ranks: int) -> Iterator[dict[str, Any]]:
    """Yield numbers of processes: GPUs of their own first, then workers beside the learner's processes."""
    for ranks in (each for each in RANKS if each <= min(most_ranks, num_gpus - 1)):
        for parts in (each for each in PARTS if not heads % each):
            if workers := (num_gpus - ranks) // parts:
                yield _layout(ranks, workers, parts)
    if num_gpus <= most_ranks:
        yield _layout(num_gpus, num_gpus, 1)


def _layout(ranks: int, workers: int, parts: int) -> dict[str, Any]:
    counts = {
        "learner.num_processes": ranks,
        "rollout.num_workers": workers,
        "rollout.tensor_parallel_size": parts,
    }
    return {key: count for key, count in counts.items() if count > 1}


def written(options: Options) -> list[str]:
    """Return options as a command line has them.

    >>> written({"rollout.sleep": True, "cluster.worker_gpus": None, "model.adapter.kind": "lora"})
    ['rollout.sleep=true', 'cluster.worker_gpus=null', 'model.adapter.kind=lora']
    """
    return [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items()]
