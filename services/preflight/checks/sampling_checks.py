"""Check that training can correct for how its rollouts are drawn, and by which weights."""

from contracts.conversations.chat_settings import NONE
from contracts.errors import InputError
from contracts.rollout import Sampling
from learner.algorithms.base import Algorithm
from learner.settings import LearnerSettings


def check_behavior(behavior: str, sampling: Sampling) -> None:
    """Check that importance weights can correct for the sampling: some tokens must not be ruled out.

    Args:
        behavior: learner.behavior.

    Raises:
        InputError: training draws with top-k, top-p, a minimum length or a mask.
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
            f"learner.behavior=importance corrects for a temperature only, and {', '.join(cuts)} leaves "
            f"tokens that are never drawn; expected learner.behavior=exact"
        )


def check_end(sampling: Sampling, *, by_template: bool) -> None:
    """Check that no text goes on behind the token that ends a message of a chat template.

    Raises:
        InputError: it does.
    """
    if sampling.ignore_eos and by_template:
        raise InputError(
            "rollout.ignore_eos=true writes on behind the end token, which ends a chat template's answers; "
            f"expected rollout.ignore_eos=false, or model.chat.template={NONE}"
        )


def check_one_correction(learner: LearnerSettings, ahead: int) -> None:
    """Check that the option that corrects the policy's own rollouts contradicts no other one.

    Args:
        ahead: rollout.max_staleness.

    Raises:
        InputError: another option asks for other weights, and would do nothing.
    """
    mismatch, stale = learner.mismatch.weights, learner.staleness_correction
    if learner.behavior == "importance":
        for key, asked, own in (
            ("learner.mismatch.weights", mismatch, "auto"),
            ("learner.staleness_correction", stale, "token"),
        ):
            if asked not in (own, "token"):
                raise InputError(
                    f"learner.behavior=importance weighs each token, and {key}={asked} asks for other "
                    f"weights; expected {key}={own}, or learner.behavior=exact"
                )
    if ahead and mismatch in ("token", "response") and mismatch != stale:
        raise InputError(
            f"rollout.max_staleness={ahead} with learner.mismatch.weights={mismatch} and "
            f"learner.staleness_correction={stale}: a batch that older weights wrote would follow the second "
            f"one alone; expected learner.staleness_correction={mismatch}, or learner.mismatch.weights=auto"
        )


def check_staleness(ahead: int, sampling: Sampling, algorithm: Algorithm, name: str, serve: str) -> None:
    """Check that texts may be written while weights change.

    Args:
        ahead: rollout.max_staleness.
        name: the algorithm's, for messages.
        serve: model.adapter.serve.

    Raises:
        InputError: a mask or an adapter changes with the weights, or nothing is written.
    """
    if ahead and sampling.masked:
        raise InputError(
            f"rollout.max_staleness={ahead} with algorithm={name}: the mask may change while a text is "
            "written, and ratios are exact under one mask alone; expected rollout.max_staleness=0"
        )
    if ahead and serve == "adapter":
        raise InputError(
            f"rollout.max_staleness={ahead} with model.adapter.serve=adapter: a text that vLLM has begun "
            "keeps the adapter it began with; expected model.adapter.serve=merged"
        )
    if ahead and not algorithm.traits.online:
        raise InputError(
            f"rollout.max_staleness={ahead} with algorithm={name}: nothing is written that could be "
            "ahead; expected rollout.max_staleness=0"
        )
