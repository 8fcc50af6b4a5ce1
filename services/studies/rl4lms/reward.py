"""Translate `reward_fn` into parts of a sum; a shaping function becomes a second part of weight 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contracts.errors import did_you_mean
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import Section

Part = dict[str, Any]
Reader = Callable[[Section, Findings], list[Part]]

MISSING = "???"  # Hydra's mark of a required value
THEIR_BLEU = {"bleu": "variant: rl4lms", "sacre_bleu": "effective_order: false"}
JOIN = "last_utterance_unmarked"  # RL4LMs' classifier reads utterance and answer without a separator
BLEURT = "bleurt-base-128"  # the default checkpoint
BLEURT_ON_HUB = "Elron/"  # the checkpoints converted to transformers
METEOR_DISTORTION = (
    "meteor: RL4LMs compares a text with all references printed as one list, brackets and quotes included. "
    "So a text equal to its reference scores about 0.69. Whetstone's meteor takes the best reference. "
    "meteor_rl4lms_compat gives the values of RL4LMs' papers"
)


def reward_fn(section: Section, *, compat: bool) -> Findings:
    """Put `reward`, a name or a list of parts, into the findings.

    Raises:
        InputError: a reward or argument is unknown.
    """
    findings = Findings()
    name = section.text("id")
    arguments = section.part("args", {})
    if name not in REWARDS:
        raise section.refuse("id", f"RL4LMs has no such reward{did_you_mean(str(name), REWARDS)}")
    parts = REWARDS[name](arguments, findings)
    if name in SHAPED:
        parts += _shaping(arguments, findings)
    arguments.finish()
    section.finish()
    parts = [as_rl4lms(part) if compat else part for part in parts]
    if any(part["name"] == "meteor" for part in parts):
        findings.warn(METEOR_DISTORTION)
    if not compat and name in ("bleu", "sacre_bleu"):
        findings.warn(
            f"{section.where}: RL4LMs' {name} gives 0 to every text of fewer than four words. Whetstone "
            f"counts only the n-gram orders that fit into the text. {THEIR_BLEU[name]} restores RL4LMs' rule"
        )
    source_value = {"id": name, **(section.take("args", {}) or {})} if "args" in section else name
    findings.put("reward", _short(parts), section.where, source_value)
    return findings


def as_rl4lms(part: Part) -> Part:
    """Return the part with RL4LMs' values."""
    if part["name"] in ("meteor", "cider"):
        return {**part, "name": f"{part['name']}_rl4lms_compat"}
    if part["name"] in COMPAT_OPTIONS:
        return COMPAT_OPTIONS[part["name"]] | part
    if part["name"] in ("rouge", "rouge_combined"):
        part = {**part, "tokenizer": "rouge_score"}
    if part["name"] == "rouge" and part["references"] == "best":
        return {key: value for key, value in part.items() if key not in ("references", "tokenizer")} | {
            "name": "rouge_rl4lms_compat"
        }
    return part


def _short(parts: list[Part]) -> Any:
    """Shorten a single part without options to its name, and drop weights of 1."""
    shortened = [
        {key: value for key, value in part.items() if (key, value) != ("weight", 1.0)} for part in parts
    ]
    (first, *more) = shortened
    if more:
        return shortened
    return first["name"] if len(first) == 1 else first


def _shaping(arguments: Section, findings: Findings) -> list[Part]:
    shaping = arguments.text("shaping_fn", None)
    if shaping is None:
        return []
    if shaping not in REWARDS:
        raise arguments.refuse("shaping_fn", f"RL4LMs has no such reward{did_you_mean(shaping, REWARDS)}")
    findings.warn(
        f"{arguments.key('shaping_fn')}: {shaping} becomes a second part of the reward, with weight 1"
    )
    empty = Section({}, arguments.key("shaping_fn"), arguments.source)
    return REWARDS[shaping](empty, findings)


# RL4LMs passes these to sacrebleu, under sacrebleu's names.
SACRE_BLEU = {
    "tokenize": "tokenize",
    "lowercase": "lowercase",
    "smooth_method": "smooth_method",
    "smooth_value": "smooth_value",
    "use_effective_order": "effective_order",
}


def plain(name: str, **options: str) -> Reader:
    """Translate a reward whose arguments keep their meaning; `options` maps them to Whetstone's names."""

    def read(arguments: Section, findings: Findings) -> list[Part]:
        taken = {new: arguments.take(old) for old, new in options.items() if old in arguments}
        for old in options:
            arguments.take(old, None)
        return [{"name": name, **taken}]

    return read


def _rouge(arguments: Section, findings: Findings) -> list[Part]:
    single = arguments.flag("use_single_ref", True)
    if not single:
        findings.warn(
            f"{arguments.key('use_single_ref')} is False, so RL4LMs compares a text with all references "
            "printed as one list. Whetstone takes the best reference; --compat restores RL4LMs' way"
        )
    references = "first" if single else "best"
    return [{"name": "rouge", "rouge_type": arguments.text("rouge_type"), "references": references}]


def rouge_combined(arguments: Section, findings: Findings) -> list[Part]:
    return [{"name": "rouge_combined", "references": "first"}]


def rouge_l_max(arguments: Section, findings: Findings) -> list[Part]:
    """Translate py-rouge's options for ROUGE-L, with its defaults."""
    part: Part = {"name": "rouge_l_max"}
    limited = arguments.flag("limit_length", True)
    limit, unit = arguments.integer("length_limit", 665), arguments.text("length_limit_type", "bytes")
    if limited:
        part |= {"length_limit": limit, "length_limit_type": unit}
    for key in ("alpha", "weight_factor"):
        if (value := arguments.number(key, None)) is not None:
            part[key] = float(value)
    if (stemming := arguments.flag("stemming", None)) is not None:
        part["stemming"] = stemming
    for key in ("apply_avg", "apply_best"):
        arguments.flag(key, None)
    unused = ["max_n", "metrics", "apply_avg", "apply_best"]
    findings.leave_all(arguments, unused, "Whetstone takes ROUGE-L with the best reference")
    return [part]


def learned_reward(arguments: Section, findings: Findings) -> list[Part]:
    findings.leave_all(arguments, ["batch_size"], "Whetstone chooses the batch size")
    part: Part = {
        "name": "learned_reward",
        "model": arguments.text("model_name"),
        "label_ix": arguments.integer("label_ix"),
    }
    # RL4LMs puts nothing between prompt and text.
    with_prompt = arguments.flag("include_prompt_for_eval", True)
    return [part | ({"template": "{prompt}{text}"} if with_prompt else {"include_prompt": False})]


def bleurt(key: str) -> Reader:
    """Translate BLEURT; `key` holds Google's name of the checkpoint."""

    def read(arguments: Section, findings: Findings) -> list[Part]:
        name = arguments.text(key, None) or BLEURT
        findings.warn(
            f"{arguments.key(key)}: {name} is Google's checkpoint. Whetstone loads {BLEURT_ON_HUB}{name}, "
            "its conversion to transformers"
        )
        return [{"name": "bleurt", "model": BLEURT_ON_HUB + name}]

    return read


def _spider(arguments: Section, findings: Findings) -> list[Part]:
    findings.warn(
        f"{arguments.where}: RL4LMs' CIDEr counts document frequencies over the ten prompts of a rollout, "
        "and gives 0 if there is only one prompt. Whetstone counts them over a file. Set df_file "
        f'({MISSING} in the experiment) to a file with a line {{"references": [...]}} for each prompt'
    )
    weights = {key: float(arguments.number(key)) for key in ("spice_coeff", "cider_coeff")}
    return [{"name": "spider", **weights, "df_file": MISSING}]


def _intent(arguments: Section, findings: Findings) -> list[Part]:
    weight = float(arguments.number("intent_coeff", 1.0))
    parts: list[Part] = [{"name": "intent_accuracy", "weight": weight, "join": JOIN}]
    shape, auto = arguments.flag("shape", True), float(arguments.number("auto_coeff", 1.0))
    if shape:
        parts.append({"name": "meteor", "weight": auto})
        findings.warn(
            f"{arguments.where}: RL4LMs gives each text the mean METEOR of all texts so far in the batch; "
            "Whetstone gives each text its own METEOR"
        )
    return parts


def _preference(arguments: Section, findings: Findings) -> list[Part]:
    findings.leave_all(arguments, ["model_type", "device", "batch_size"], "Whetstone's own settings apply")
    part: Part = {"name": "preference_model", "model": MISSING}
    penalty = float(arguments.number("concept_penalty_coeff", 0))
    if penalty:
        part["concept_penalty_coeff"] = penalty
    meteor = float(arguments.number("meteor_coeff", 0))
    findings.warn(
        f"{arguments.where}: RL4LMs' preference model is a T5-11B with a separate download. Set "
        f"reward.model=FOLDER; the experiment has model: {MISSING}"
    )
    return [part, *([{"name": "meteor", "weight": meteor}] if meteor else [])]


# Options with which a component repeats RL4LMs.
COMPAT_OPTIONS: dict[str, Part] = {
    "bleu": {"variant": "rl4lms"},
    "rouge_l_max": {"tokenizer": "py_rouge"},
    "sacre_bleu": {"effective_order": False, "tokenize": "13a"},
    "bleurt": {"references": "printed"},
    "parent": {"null_references": True},
    "spice": {"tokenizer": "spacy"},
}
SHAPED = ("meteor", "rouge", "rouge_combined", "spider")  # ids that accept shaping_fn
REWARDS: dict[str, Reader] = {
    "increasing_numbers": plain("increasing_numbers", min_tokens="min_tokens"),
    "sentences_with_dates": plain("dates"),
    "learned_reward": learned_reward,
    "meteor": plain("meteor"),
    "rouge": _rouge,
    "rouge_combined": rouge_combined,
    "bert_score": plain("bert_score", language="language"),
    "bleu": plain("bleu"),
    "bleurt": bleurt("checkpoint"),
    "sacre_bleu": plain("sacre_bleu", **SACRE_BLEU),
    "ter": plain("ter"),
    "chrf": plain("chrf"),
    "rouge_l_max": rouge_l_max,
    "parent": plain("parent"),
    "spider": _spider,
    "common_gen_repeat_penalty": plain("common_gen_repeat_penalty"),
    "common_gen_repeat_penalty_batched": plain("common_gen_repeat_penalty"),
    "intent_accuracy": _intent,
    "common_gen_preference_model": _preference,
}
