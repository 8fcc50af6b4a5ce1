"""Translate `alg` of an RL file: numbers counted in sequences instead of tokens, KL, policy and mask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.errors import did_you_mean
from services.studies.rl4lms.decoding import Decoding, Frame, decoding, rollouts
from services.studies.rl4lms.env import CutSide, Env, read_side
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.policy import optimizer, policy_id
from services.studies.rl4lms.reading import Section

# Arguments that keep their meaning: name, type and Whetstone's option. RL4LMs' defaults are those of our
# classes, except for `AS_THERE` and `DEFAULTS`.
ACTOR_CRITIC = (
    ("learning_rate", "number", "learning_rate"),
    ("gamma", "number", "gamma"),
    ("gae_lambda", "number", "gae_lambda"),
)
LOSS = (
    ("ent_coef", "number", "entropy_coef"),
    ("vf_coef", "number", "value_coef"),
    ("max_grad_norm", "number", "max_grad_norm"),
)
PPO = (
    *ACTOR_CRITIC,
    *LOSS,
    ("n_epochs", "integer", "num_epochs"),
    ("clip_range", "number", "clip_range"),
    ("clip_range_vf", "number", "value_clip_range"),
    ("target_kl", "number", "target_kl"),
)
TRPO = (
    *ACTOR_CRITIC,
    ("n_critic_updates", "integer", "num_epochs"),
    ("target_kl", "number", "target_kl"),
    ("cg_max_steps", "integer", "cg_max_steps"),
    ("cg_damping", "number", "cg_damping"),
    ("line_search_shrinking_factor", "number", "line_search_shrinking_factor"),
    ("line_search_max_iter", "integer", "line_search_max_iter"),
)
KEPT: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "ppo": PPO,
    "nlpo": PPO,
    "a2c": (*ACTOR_CRITIC, *LOSS, ("rms_prop_eps", "number", "optimizer.eps")),
    "trpo": TRPO,
}
NUM_STEPS = {"ppo": 2048, "nlpo": 2048, "a2c": 5, "trpo": 2048}  # default of n_steps
BATCH_SIZE = {"ppo": 64, "nlpo": 64, "trpo": 128}  # A2C takes one batch
FLOAT32 = {"learner.autocast": "none", "rollout.dtype": "float32"}  # RL4LMs computes only in float32
DECAYS = "algorithm.optimizer.decays"
AS_THERE = {
    "model.value_trunk": "separate",
    DECAYS: "all_but_biases",
    "algorithm.reward_scale": 1.0,
    "algorithm.normalize_values": False,
    **FLOAT32,
}
DEFAULTS = {"gamma": 0.99, "optimizer.eps": 1e-5}  # RL4LMs' defaults that differ from ours
WITHOUT_EFFECT = ("verbose", "use_sde", "sde_sample_freq", "tensorboard_log", "create_eval_env")


@dataclass(frozen=True, slots=True)
class RL:
    """Values from other sections."""

    model: str
    frame: Frame
    rollout: Decoding
    masked: bool
    cut: CutSide  # the side on which evaluation prompts are cut


def alg(section: Section, env: Env, *, compat: bool) -> tuple[RL, Findings]:
    """Translate the algorithm, the model and the sampling of rollouts."""
    findings = Findings()
    name = section.text("id")
    if name not in KEPT:
        known = [*KEPT, "supervised"]
        raise section.refuse("id", f"RL4LMs has no such algorithm{did_you_mean(str(name), known)}")
    findings.put("algorithm.name", name, section.key("id"))
    policy = section.part("policy")
    seq2seq, masked = policy_id(policy, name, findings)
    arguments = policy.part("args")
    model = arguments.text("model_name")
    findings.put("model.path", model, arguments.key("model_name"))
    frame = Frame(seq2seq, env.prompt_tokens, env.episode_tokens, compat)
    kwargs = arguments.part("generation_kwargs", {})
    drawn, notes = decoding(kwargs, frame)
    findings.add(notes)
    drawn = rollouts(drawn, kwargs, findings)
    _numbers(section.part("args"), name, env, drawn.max_tokens, findings)
    _kl(section.part("kl_div"), findings)
    optimizer(arguments, name, drawn, findings)
    cut = read_side(arguments, "prompt_truncation_side")
    for option, value in AS_THERE.items():
        findings.put(
            option, value, "always", "RL4LMs: separate value model, decay of norms, raw rewards, float32"
        )
    if compat:
        _as_rl4lms(name, drawn, findings)
    arguments.finish()
    policy.finish()
    section.finish()
    return RL(model, frame, drawn, masked, cut), findings


def _numbers(arguments: Section, name: str, env: Env, max_tokens: int, findings: Findings) -> None:
    """Translate `alg.args`."""
    for key, kind, option in KEPT[name]:
        default = DEFAULTS.get(option)
        value = arguments.integer(key, None) if kind == "integer" else arguments.number(key, default)
        if value is not None:
            number = value if kind == "integer" else float(value)
            findings.put(f"algorithm.{option}", number, arguments.key(key), arguments.says(key, default))
        elif key == "max_grad_norm" and key in arguments:
            findings.put(f"algorithm.{option}", None, arguments.key(key))
    whiten = arguments.flag("normalize_advantage", None)
    if whiten is not None:
        chosen = "minibatch" if whiten else "none"
        findings.put("algorithm.advantage_whitening", chosen, arguments.key("normalize_advantage"), whiten)
    _sizes(arguments, name, env, max_tokens, findings)
    if name == "a2c":
        kind = "rmsprop" if arguments.flag("use_rms_prop", True) else "adamw"
        source_value = arguments.says("use_rms_prop", True)
        findings.put("algorithm.optimizer.name", kind, arguments.key("use_rms_prop"), source_value)
    if name == "trpo" and (share := arguments.integer("sub_sampling_factor", None)) is not None:
        findings.leave(arguments.key("sub_sampling_factor"), share, "Whetstone uses the whole batch")
    _seed_and_device(arguments, findings)
    findings.leave_all(arguments, WITHOUT_EFFECT, "has no meaning for texts")
    arguments.finish()


def _seed_and_device(arguments: Section, findings: Findings) -> None:
    if (seed := arguments.integer("seed", None)) is not None:
        findings.put("seed", seed, arguments.key("seed"))
        findings.warn(
            f"{arguments.key('seed')}: RL4LMs ignores the seed when it draws prompts. In Whetstone the seed "
            "decides everything"
        )
    if (device := arguments.text("device", None)) is not None:
        kind = device.partition(":")[0]
        here = kind if kind in ("cpu", "cuda") else "auto"
        findings.put("learner.device", here, arguments.key("device"), device)


def _sizes(arguments: Section, name: str, env: Env, max_tokens: int, findings: Findings) -> None:
    """Convert an iteration's tokens to whole sequences, rounded up; minibatches still count tokens."""
    steps = arguments.integer("n_steps", NUM_STEPS[name], least=1)
    tokens = steps * env.num_envs
    prompts = math.ceil(tokens / max_tokens)
    source = f"env.n_envs × {arguments.key('n_steps')}"
    source_value = f"{env.said_envs} × {arguments.says('n_steps', NUM_STEPS[name])} tokens"
    findings.put("rollout.prompts_per_iteration", prompts, source, source_value)
    texts = "1 whole text" if prompts == 1 else f"{prompts} whole texts"
    findings.warn(
        f"env.n_envs × n_steps: {env.num_envs} × {steps} = {tokens} tokens an iteration. Whetstone writes "
        f"{texts} of {max_tokens} tokens; RL4LMs discards tokens beyond {tokens}"
    )
    if name not in BATCH_SIZE:
        return
    batch = arguments.integer("batch_size", BATCH_SIZE[name], least=1)
    source_value = f"{arguments.says('batch_size', BATCH_SIZE[name])} tokens"
    findings.put("algorithm.minibatch_tokens", batch, arguments.key("batch_size"), source_value)
    findings.warn(
        f"{arguments.key('batch_size')} is {batch} tokens. RL4LMs' minibatch has exactly so many; "
        "Whetstone's has whole texts with at least so many. In both systems an epoch covers all tokens"
    )


def _kl(section: Section, findings: Findings) -> None:
    """Translate `alg.kl_div`."""
    coefficient = float(section.number("coeff"))
    target = section.number("target_kl", None)
    findings.put("algorithm.kl.coefficient", coefficient, section.key("coeff"))
    if target is not None and (target == 0 or coefficient == 0):
        findings.leave(section.key("target_kl"), target, "no target")
        why = (
            f"divides by zero in RL4LMs. Whetstone keeps coeff: {coefficient:g} without a target"
            if target == 0
            else "has no effect, because the coefficient stays 0"
        )
        findings.warn(f"{section.key('target_kl')}: {target} {why}")
    elif target is not None:
        findings.put("algorithm.kl.target", float(target), section.key("target_kl"))
        text = (
            f"{section.key('target_kl')}: {target:g} is nats per token, not per text, in RL4LMs and in "
            "Whetstone. The coefficient changes by at most 2 % an iteration"
        )
        if target >= 1:
            text += ". A policy hardly ever moves so far, so the coefficient will only fall"
        findings.warn(text)
    if section.flag("norm_reward", False):
        findings.put("algorithm.normalize_rewards", True, section.key("norm_reward"))
    section.finish()


def _as_rl4lms(name: str, drawn: Decoding, findings: Findings) -> None:
    findings.put("learner.behavior", "ignore", "--compat", "ratios of the whole softmax")
    if name == "nlpo":
        findings.put("algorithm.compatibility", "rl4lms", "--compat", "mask never renewed, not renormalised")
