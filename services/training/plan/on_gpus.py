"""Describe a run's use of GPUs: placement, options chosen to fit, and number formats."""

from learner.algorithms.base import Algorithm
from learner.optimization.number_formats import keeps_masters, why_float32
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.engines.choice import stepping, users_runner
from rollout_workers.engines.traits import traits_of
from services.training.preflight.capacity.fitting import Fit
from services.training.preflight.capacity.gpu_defaults import written
from services.training.preflight.deployment import Deployment
from services.training.preflight.picture import pictured


def on_gpus(deployed: Deployment, on_gpu: Fit | None) -> dict[str, str]:
    """Return the placement on GPUs, the options chosen for it, and the memory; {} without GPUs."""
    if not deployed.machine.num_gpus:
        return {}
    words = {"GPUs": "\n".join(pictured(deployed.placement, deployed.machine, deployed.strategy))}
    if on_gpu is not None:
        chosen = " ".join(written(on_gpu.chosen)) or "nothing: the defaults fit"
        words |= {"memory of a GPU": on_gpu.words, "chosen to fit": chosen}
    return words


def formats(
    learner: LearnerSettings, model: ModelSettings, algorithm: Algorithm, deployed: Deployment
) -> dict[str, str]:
    """Return the format of the learner's weights and how the engine steps, each only if it uses a GPU."""
    words = {}
    if deployed.learner_on_gpu:
        words["weights"] = "bfloat16, with float32 masters in the optimiser"
        if not keeps_masters(learner, model, algorithm, on_gpu=True):
            reason = why_float32(learner, model, algorithm, on_gpu=True)
            words["weights"] = f"float32: {reason or 'as asked for'}"
    if deployed.workers_on_gpu and traits_of(deployed.engine).steps_ahead:
        steps = stepping(
            deployed.rollout,
            on_gpu=True,
            has_mask=algorithm.traits.masks,
            serves_adapter=model.adapter.serve == "adapter",
            runner=users_runner(),
        )
        words["the engine steps"] = steps.in_words
    return words
