"""Translate `alg.policy`: family of the model, NLPO's mask, and the optimiser."""

from __future__ import annotations

from contracts.errors import did_you_mean
from services.studies.rl4lms.decoding import Decoding
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import Section

POLICIES = {  # (is an encoder-decoder, has a mask)
    "causal_lm_actor_critic_policy": (False, False),
    "seq2seq_lm_actor_critic_policy": (True, False),
    "maskable_causal_lm_actor_critic_policy": (False, True),
    "maskable_seq2seq_lm_actor_critic_policy": (True, True),
}
MASK_TYPES = ("learned_top_p", "learned_top_k", "topk")
MASK_KEYS = ("top_mask", "mask_type", "target_update_iterations", "min_tokens_to_keep")
MASK_TYPE = "learned_top_k"  # the default
UPDATE_EVERY = 1000  # default of target_update_iterations
TOKENS_KEPT = 100  # default of min_tokens_to_keep


def policy_id(section: Section, algorithm: str, findings: Findings) -> tuple[bool, bool]:
    """Return whether the model is an encoder-decoder, and whether it has a mask."""
    name = section.text("id")
    if name not in POLICIES:
        raise section.refuse("id", f"RL4LMs has no such policy{did_you_mean(str(name), POLICIES)}")
    seq2seq, masked = POLICIES[name]
    if algorithm == "nlpo" and not masked:
        raise section.refuse("id", f"nlpo needs a mask; expected maskable_{name}")
    if algorithm != "nlpo" and masked:
        findings.warn(
            f"{section.key('id')}: {name} has a mask. Whetstone's {algorithm} has none, so nothing restricts "
            "its rollouts"
        )
    findings.leave(section.key("id"), name, "the model's family decides")
    return seq2seq, masked and algorithm == "nlpo"


def optimizer(arguments: Section, algorithm: str, drawn: Decoding, findings: Findings) -> None:
    """Translate `alg.policy.args` except model and generation: optimiser, devices, mask."""
    if (decay := arguments.number("weight_decay", None)) is not None:
        findings.put("algorithm.optimizer.weight_decay", float(decay), arguments.key("weight_decay"))
    _optimizer_kwargs(arguments.part("optimizer_kwargs", {}), findings)
    parallel = arguments.flag("apply_model_parallel", True)
    source_value = arguments.says("apply_model_parallel", True)
    findings.leave(arguments.key("apply_model_parallel"), source_value, "the learner has one device")
    if parallel:
        findings.warn(
            f"{arguments.key('apply_model_parallel')}: RL4LMs splits the layers over all GPUs, and one GPU "
            "works at a time. In the experiment the learner is one process on one device, so the key has no "
            "effect"
        )
    findings.leave_all(arguments, ["use_sde"], "has no meaning for texts")
    if algorithm == "nlpo":
        _mask(arguments, drawn, findings)
    else:
        findings.leave_all(arguments, MASK_KEYS, f"{algorithm} has no mask")


def _optimizer_kwargs(arguments: Section, findings: Findings) -> None:
    betas = arguments.take("betas", None)
    if betas is not None:
        if not isinstance(betas, list) or len(betas) != 2:
            raise arguments.refuse("betas", "expected two numbers, such as [0.9, 0.999]")
        for option, beta in zip(("beta1", "beta2"), betas, strict=True):
            findings.put(f"algorithm.optimizer.{option}", beta, arguments.key("betas"))
    for key in ("eps", "weight_decay", "alpha"):
        if (value := arguments.number(key, None)) is not None:
            findings.put(f"algorithm.optimizer.{key}", float(value), arguments.key(key))
    arguments.finish()


def _mask(arguments: Section, drawn: Decoding, findings: Findings) -> None:
    kind = arguments.text("mask_type", MASK_TYPE)
    if kind not in MASK_TYPES:
        raise arguments.refuse("mask_type", f"RL4LMs has no such mask{did_you_mean(str(kind), MASK_TYPES)}")
    top = arguments.number("top_mask", None)
    where = f"{arguments.key('mask_type')}, top_mask"
    source_value = f"{arguments.says('mask_type', MASK_TYPE)}, {top}"
    if top is None or top <= 0:
        raise arguments.refuse(
            "top_mask", "RL4LMs fails with this size of the mask; expected a share such as 0.9, or a count"
        )
    if kind == "learned_top_p":
        findings.put("algorithm.top_p", float(top), where, source_value)
    else:
        findings.put("algorithm.top_p", None, where, source_value)
        findings.put("algorithm.top_k", int(top), where, source_value)
    if kind == "topk":
        findings.warn(
            f"{arguments.key('mask_type')}: topk keeps the learner's own likeliest tokens in RL4LMs. "
            "Whetstone takes the mask from a copy of the learner, renewed every target_update_iterations"
        )
    every = arguments.integer("target_update_iterations", UPDATE_EVERY)
    key = "target_update_iterations"
    findings.put(f"algorithm.{key}", every, arguments.key(key), arguments.says(key, UPDATE_EVERY))
    kept = arguments.integer("min_tokens_to_keep", TOKENS_KEPT)
    key = "min_tokens_to_keep"
    findings.put(f"algorithm.{key}", kept, arguments.key(key), arguments.says(key, TOKENS_KEPT))
    findings.warn(
        f"{arguments.where}: RL4LMs' sampler never sees a renewed mask, and its ratios are PPO's (masked "
        "probabilities are not renormalised). Whetstone renews the mask and takes ratios of the renormalised "
        "probabilities. --compat restores RL4LMs' behaviour"
    )
    if 0 < drawn.top_k <= kept:
        findings.warn(
            f"{arguments.key('min_tokens_to_keep')}: the mask always keeps {kept} tokens, and rollouts "
            f"sample from the {drawn.top_k} likeliest. So the mask removes nothing, and NLPO equals PPO, "
            "until the learner is far from its copy. algorithm.min_tokens_to_keep=1 lets the mask act"
        )
