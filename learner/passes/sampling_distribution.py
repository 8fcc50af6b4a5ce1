"""Choose the learner's distribution: that of the workers' sampling, or the whole softmax."""

from dataclasses import replace
from typing import Any

from contracts.rollout import MaskRule, Sampling
from contracts.vocabulary import decoder_start, end_tokens
from learner.algorithms.base import Algorithm
from learner.functional.repetition import RepetitionRule
from learner.functional.support import SamplingDistribution
from learner.settings import LearnerSettings, ModelSettings


def sampling_distribution(
    algorithm: Algorithm,
    sampling: Sampling,
    settings: LearnerSettings,
    lm: Any,
    model: ModelSettings,
) -> SamplingDistribution:
    """Return the distribution of all probabilities: the sampler's or the whole softmax."""
    tokenizer = _tokenizer(model)
    rule: MaskRule | None = None
    if algorithm.traits.masks:
        rule = algorithm.mask_rule()
        if rule.keep_special:
            rule = replace(rule, always=tuple(tokenizer.all_special_ids))
    renormalized = algorithm.traits.masks and algorithm.renormalizes()
    as_rl4lms = rule is not None and not renormalized
    # Imitation raises the model's likelihood, however the texts were drawn.
    if settings.behavior != "exact" or as_rl4lms or algorithm.traits.imitates:
        sampling = Sampling(max_tokens=sampling.max_tokens)  # the whole softmax
    ends = end_tokens(lm.generation_config.eos_token_id, tokenizer.eos_token_id)
    return SamplingDistribution(
        sampling,
        ends,
        rule if renormalized else None,
        ignored_mask=None if renormalized else rule,
        repetition=repetition_rule(sampling, lm),
    )


def repetition_rule(sampling: Sampling, lm: Any) -> RepetitionRule | None:
    """Return the repetition penalty as a rule for this model; None: the penalty is 1."""
    penalty, config = sampling.repetition_penalty, lm.config
    if penalty == 1:
        return None
    if not config.is_encoder_decoder:
        return RepetitionRule(penalty)
    configured = getattr(config, "decoder_start_token_id", None), lm.generation_config.decoder_start_token_id
    return RepetitionRule(penalty, decoder_start(*configured))


def _tokenizer(model: ModelSettings) -> Any:
    from transformers import AutoTokenizer

    if model.tokenizer is not None:  # `revision` belongs to the model, not to the tokenizer
        return AutoTokenizer.from_pretrained(model.tokenizer, trust_remote_code=False)
    return AutoTokenizer.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
