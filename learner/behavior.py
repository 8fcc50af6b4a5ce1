"""What both sides of a ratio are restricted to: how the workers draw, as far as the settings count it."""

from dataclasses import replace
from typing import Any

from contracts.rollout import MaskRule, Sampling
from contracts.vocabulary import end_tokens
from learner.algorithms.base import Algorithm, Masks
from learner.algorithms.imitation import Imitation
from learner.functional.support import Behavior
from learner.settings import LearnerSettings, ModelSettings


def behavior_for(
    algorithm: Algorithm,
    sampling: Sampling,
    settings: LearnerSettings,
    lm: Any,
    model: ModelSettings,
) -> Behavior:
    """The distribution that probabilities are of: the sampler's, or the whole softmax."""
    tokenizer = _tokenizer(model)
    rule: MaskRule | None = None
    if isinstance(algorithm, Masks):
        rule = algorithm.mask_rule()
        if rule.keep_special:
            rule = replace(rule, always=tuple(tokenizer.all_special_ids))
    renormalized = isinstance(algorithm, Masks) and algorithm.renormalizes()
    as_rl4lms = rule is not None and not renormalized
    # A likelihood that is imitated is the model's own, however its texts were drawn.
    imitates = isinstance(algorithm, Imitation)
    if settings.behavior != "exact" or as_rl4lms or imitates:
        sampling = Sampling(max_tokens=sampling.max_tokens)  # the whole softmax
    ends = end_tokens(lm.generation_config.eos_token_id, tokenizer.eos_token_id)
    return Behavior(
        sampling, ends, rule if renormalized else None, ignored_mask=None if renormalized else rule
    )


def _tokenizer(model: ModelSettings) -> Any:
    from transformers import AutoTokenizer

    if model.tokenizer is not None:  # the revision is the model's
        return AutoTokenizer.from_pretrained(model.tokenizer)
    return AutoTokenizer.from_pretrained(model.path, revision=model.revision)
