"""Choose the number formats of the learner's products and parameters from its settings alone."""

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.settings import LearnerSettings, ModelSettings


def autocast_of(settings: LearnerSettings, *, on_gpu: bool) -> str:
    """Return the format of products that `learner.autocast` chooses.

    >>> autocast_of(LearnerSettings(), on_gpu=True), autocast_of(LearnerSettings(), on_gpu=False)
    ('bfloat16', 'none')
    """
    if settings.autocast != "auto":
        return settings.autocast
    return "bfloat16" if on_gpu else "none"


def why_float32(
    settings: LearnerSettings, model: ModelSettings, algorithm: Algorithm, *, on_gpu: bool
) -> str | None:
    """Return why the policy's parameters can't be bfloat16 with float32 masters; None: they can."""
    own_class = model.policy != "auto" or ":" in model.critic
    reasons = (
        (autocast_of(settings, on_gpu=on_gpu) != "bfloat16", "products are not in bfloat16"),
        (settings.num_processes > 1, "several processes gather bfloat16 copies of float32 rows"),
        (settings.offload, "with learner.offload a GPU gets bfloat16 copies of float32 rows"),
        (model.adapter.trains, "an adapter trains beside a frozen model"),
        (model.trainable_layers is not None, "models share the frozen layers"),
        (own_class, "a policy or critic of one's own may expect float32"),
        (algorithm.traits.update == "trust_region", "a trust region moves the parameters itself"),
    )
    return next((reason for is_so, reason in reasons if is_so), None)


def keeps_masters(
    settings: LearnerSettings, model: ModelSettings, algorithm: Algorithm, *, on_gpu: bool
) -> bool:
    """Return whether the policy's parameters are bfloat16 with float32 masters: `learner.param_dtype`.

    Raises:
        InputError: the settings require bfloat16 where it is impossible.
    """
    if settings.param_dtype == "float32":
        return False
    reason = why_float32(settings, model, algorithm, on_gpu=on_gpu)
    if settings.param_dtype == "bfloat16" and reason is not None:
        raise InputError(
            f"learner.param_dtype=bfloat16: {reason}; expected learner.param_dtype=float32 or auto"
        )
    return reason is None and (on_gpu or settings.param_dtype == "bfloat16")
