"""Check that training can correct for the sampling of its rollouts, and with which weights."""

from contracts.conversations.chat_settings import NONE
from contracts.errors import InputError
from contracts.rollout import Sampling
from learner.algorithms.base import Algorithm
from learner.settings import LearnerSettings


def check_behavior(behavior: str, sampling: Sampling) -> None:
    """Check that importance weights can correct for the sampling, which must allow every token.

    Args:
        behavior: learner.behavior.

    Raises:
        InputError: training samples with top-k, top-p, a minimum length or a mask.
    """
    if behavior != "importance":
        return
    cuts = [
        name
        for name, cut in (
            ("rollout.top_k", sampling.top_k > 0),
            ("rollout.top_p", sampling.top_p < 1),
            ("rollout.min_tokens", sampling.min_tokens > 0),
            ("algorithm.name=nlpo", sampling.masked),
        )
        if cut
    ]
    if cuts:
        raise InputError(
            f"learner.behavior=importance corrects only for a temperature, but {', '.join(cuts)} excludes "
            f"tokens; expected learner.behavior=exact"
        )


def check_end(sampling: Sampling, *, by_template: bool) -> None:
    """Check that no text continues after the token that ends a message of a chat template.

    Raises:
        InputError: texts would continue.
    """
    if sampling.ignore_eos and by_template:
        raise InputError(
            "rollout.ignore_eos=true writes on after the end token, which ends a chat template's answers; "
            f"expected rollout.ignore_eos=false, or model.chat.template={NONE}"
        )


def check_one_correction(learner: LearnerSettings, ahead: int) -> None:
    """Check that the option that corrects the policy's rollouts contradicts no other option.

    Args:
        ahead: rollout.max_staleness.

    Raises:
        InputError: another option sets other weights, and would do nothing.
    """
    mismatch, stale = learner.mismatch.weights, learner.staleness_correction
    if learner.behavior == "importance":
        for key, weights, default in (
            ("learner.mismatch.weights", mismatch, "auto"),
            ("learner.staleness_correction", stale, "token"),
        ):
            if weights not in (default, "token"):
                raise InputError(
                    f"learner.behavior=importance weights each token, but {key}={weights} sets other "
                    f"weights; expected {key}={default}, or learner.behavior=exact"
                )
    if ahead and mismatch in ("token", "response") and mismatch != stale:
        raise InputError(
            f"rollout.max_staleness={ahead} with learner.mismatch.weights={mismatch} and "
            f"learner.staleness_correction={stale}: for a batch that older weights wrote, only the second "
            f"would count; expected learner.staleness_correction={mismatch}, or learner.mismatch.weights=auto"
        )


def check_staleness(ahead: int, sampling: Sampling, algorithm: Algorithm, name: str, serve: str) -> None:
    """Check that texts may be written while weights change.

    Args:
        ahead: rollout.max_staleness.
        name: name of the algorithm, for messages.
        serve: model.adapter.serve.

    Raises:
        InputError: a mask or an adapter changes with the weights, or nothing is written.
    """
    if ahead and sampling.masked:
        raise InputError(
            f"rollout.max_staleness={ahead} with algorithm={name}: the mask may change while a text is "
            "written, but ratios are exact only under one mask; expected rollout.max_staleness=0"
        )
    if ahead and serve == "adapter":
        raise InputError(
            f"rollout.max_staleness={ahead} with model.adapter.serve=adapter: a text that vLLM has begun "
            "keeps its first adapter; expected model.adapter.serve=merged"
        )
    if ahead and not algorithm.traits.online:
        raise InputError(
            f"rollout.max_staleness={ahead} with algorithm={name}: no texts are written "
            "ahead of training; expected rollout.max_staleness=0"
        )
