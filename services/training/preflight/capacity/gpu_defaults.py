"""Choose open settings about GPU memory, or reject the run and say which settings fit."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal

from contracts.errors import InputError
from contracts.settings import with_options
from learner.algorithms.base import Algorithm
from learner.distributed.whole_models import spreads
from learner.models.adapter_settings import AdapterSettings
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.engines.traits import traits_of
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.models.shape import num_heads, shape_of
from services.training.preflight.capacity.fitting import Fit, Misfit, Options, fit
from services.training.preflight.capacity.gpu_memory import Texts
from services.training.preflight.capacity.memory_model import MemoryNeeds, num_parameters, share_and_base
from services.training.preflight.checks.reference_checks import num_parameters_of_reference
from services.training.preflight.deployment import Machine, deployment_of
from services.training.preflight.placement import fits

RANKS = (1, 2, 4, 8, 12, 14)  # numbers of learner processes to try
PARTS = (1, 2, 4, 8)  # GPUs of a worker
ON_THEIR_WAY, PUSHED_BYTES = 2, 2  # versions of the weights in Ray's object store; bytes of a parameter
UNKNOWN_SHARE = 0.45  # share of all workers beside the learner, if a GPU's memory is unknown


def fitted(settings: RunSettings, model: ModelFiles, machine: Machine) -> tuple[RunSettings, Fit | None]:
    """Return settings with which the run fits onto the machine's GPUs, and the resulting memory.

    If the engine is not vLLM, or a size is unknown, change only the settings of a shared GPU. Without GPUs
    change nothing.

    Raises:
        InputError: nothing fits; the message names the memory needed, and overrides that fit.
    """
    outcome = choice(settings, model, machine)
    if outcome is None:
        beside = deployment_of(settings, model, machine).placement.workers_beside_a_learner
        return with_options(settings, _shared(settings.rollout, settings.learner, beside)), None
    if isinstance(outcome, Fit):
        return with_options(settings, outcome.chosen), outcome
    instead = alternative(settings, model, machine)
    if instead is None:
        way_out = "no layout that was tried fits this machine; expected a smaller model, or more GPUs"
    else:
        way_out = f"expected {' '.join(written(instead[0]))}, with which it fits"
    raise InputError(f"too little memory on the GPUs: {outcome.words}; {way_out}")


def choice(settings: RunSettings, model: ModelFiles, machine: Machine) -> Fit | Misfit | None:
    """Return the choice that fits, or a Misfit; None if nothing is to be chosen."""
    deployed = deployment_of(settings, model, machine)
    on_gpus = deployed.learner_on_gpu and deployed.workers_on_gpu and settings.learner.device != "cpu"
    sections = settings.model, settings.algorithm, settings.learner, settings.rollout
    needs, shape = memory_needs(*sections, model), shape_of(model)
    shares = traits_of(deployed.engine).reserves_cache  # the engine reserves a share of the GPU
    if not (on_gpus and machine.gpu_bytes and needs and shape and shares):
        return None
    is_open = settings.plays or settings.data is not None
    rollouts = None if is_open else settings.rollout.prompts_per_iteration * settings.group_size
    return fit(needs, shape, Texts(model.window, rollouts), deployed)


def memory_needs(
    model_settings: ModelSettings,
    algorithm: Algorithm,
    learner: LearnerSettings,
    rollout: RolloutSettings,
    model: ModelFiles,
) -> MemoryNeeds | None:
    """Return the settings and sizes that memory depends on; None if the model's size is unknown."""
    count, _ = num_parameters(model)
    if not count:
        return None
    share, base = share_and_base(model_settings, model, count)
    others = num_parameters_of_reference(model_settings)
    return MemoryNeeds(model_settings, algorithm, learner, rollout, count, share, base, others)


def _shared(rollout: RolloutSettings, learner: LearnerSettings, beside: int) -> Options:
    """Return `rollout.sleep` and vLLM's memory share for a GPU of unknown size that learner and worker share.

    Args:
        beside: workers on the GPU of a learner's process.
    """
    if not beside or rollout.max_staleness or learner.device == "cpu":
        return {}
    share = math.floor(100 * UNKNOWN_SHARE / beside) / 100
    chosen = {"rollout.sleep": True, "rollout.gpu_memory_utilization": share}
    return {k: v for k, v in chosen.items() if k.partition(".")[2] not in rollout.model_fields_set}


def alternative(settings: RunSettings, model: ModelFiles, machine: Machine) -> tuple[Options, Fit] | None:
    """Return the first layout, offload or adapter with which the run fits; None if none fits."""
    num_gpus = int(machine.num_gpus)
    offloads = settings.learner.transport in ("auto", "objects")  # a broadcast needs weights on a GPU
    for options in _alternatives(settings.model, settings.cluster, settings.algorithm, model, num_gpus):
        changed = with_options(settings, options)
        placed = deployment_of(changed, model, machine).placement
        if not fits(placed, num_gpus, machine.num_cores):
            continue
        outcome = choice(changed, model, machine)
        if not isinstance(outcome, Fit):
            continue
        parts = changed.model, changed.algorithm, changed.learner, changed.rollout
        sleepers = changed.rollout.num_workers if outcome.sleeps else 0
        has_room = offloads and _host_has_room(memory_needs(*parts, model), sleepers, machine.host_bytes)
        if has_room or not changed.learner.offload:
            return options, outcome
    return None


def _host_has_room(needs: MemoryNeeds | None, sleepers: int, host_bytes: float | None) -> bool:
    """Tell whether one node's memory surely holds offloaded, pushed and sleeping weights.

    Args:
        sleepers: workers that keep their weights in the node's memory while they sleep.
    """
    if needs is None or host_bytes is None:
        return False
    copied = (ON_THEIR_WAY + sleepers) * PUSHED_BYTES * needs.num_parameters
    return sum(needs.of_learner().values()) + copied <= host_bytes


def _alternatives(
    model_settings: ModelSettings,
    cluster: ClusterSettings,
    algorithm: Algorithm,
    model: ModelFiles,
    num_gpus: int,
) -> Iterator[dict[str, Any]]:
    """Yield layouts of the unchanged run, then layouts with offload, then with LoRA, then with QLoRA.

    Offloading trains the same model more slowly. An adapter trains fewer parameters.
    """
    shares = ("cluster.learner_gpus", "cluster.worker_gpus")
    open_again = {} if cluster.learner_gpus is None else dict.fromkeys(shares)
    traits, adapter, spread = algorithm.traits, model_settings.adapter, spreads(model_settings, algorithm)
    one = model_settings.trainable_layers is not None or model.is_encoder_decoder
    most_ranks = 1 if one or (adapter.trains and not spread) else num_gpus
    layouts = list(_layouts(num_gpus, num_heads(model), most_ranks))
    yield from (layout | open_again for layout in layouts)
    if spread and not one:
        yield from ({"learner.offload": True} | layout | open_again for layout in layouts)
    if one or adapter.trains or traits.masks:
        return
    kinds: tuple[Literal["lora", "qlora"], ...] = (
        ("lora",) if traits.update == "trust_region" else ("lora", "qlora")
    )
    for kind in kinds:
        adapted = model_settings.model_copy(update={"adapter": AdapterSettings(kind=kind)})
        most_ranks = num_gpus if spreads(adapted, algorithm) else 1
        for layout in _layouts(num_gpus, num_heads(model), most_ranks):
            yield {"model.adapter.kind": kind} | layout | open_again


def _layouts(num_gpus: int, heads: int, most_ranks: int) -> Iterator[dict[str, Any]]:
    """Yield numbers of processes: first separate GPUs for workers, then workers beside the learner."""
    for ranks in (count for count in RANKS if count <= min(most_ranks, num_gpus - 1)):
        for parts in (count for count in PARTS if not heads % count):
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
    """Return options in the form of a command line.

    >>> written({"rollout.sleep": True, "cluster.worker_gpus": None, "model.adapter.kind": "lora"})
    ['rollout.sleep=true', 'cluster.worker_gpus=null', 'model.adapter.kind=lora']
    """
    return [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items()]
