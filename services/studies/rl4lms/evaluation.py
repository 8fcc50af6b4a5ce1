"""Translate `train_evaluation`: number of iterations, cadence of evaluations and checkpoints, metrics."""

from __future__ import annotations

from typing import Any

from contracts.errors import InputError, did_you_mean
from services.studies.rl4lms.decoding import Decoding, Frame, decoding, evaluations
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import Section
from services.studies.rl4lms.reward import (
    JOIN,
    METEOR_DISTORTION,
    SACRE_BLEU,
    Reader,
    as_rl4lms,
    bleurt,
    learned_reward,
    plain,
    rouge_l_max,
)

SAVE_EVERY = 20  # the default
CIDER_WORDS = (
    "cider: RL4LMs counts spaCy's tokens, letter case and punctuation included. Whetstone's cider counts the "
    "COCO evaluation's words. cider_rl4lms_compat gives the values of RL4LMs' papers"
)
LARGEST_STRIDE = 512  # stride of a file without one: half of GPT-2's window


def iterations(section: Section, findings: Findings) -> None:
    """Translate the cadence of an RL run.

    Raises:
        InputError: the file requests no training.
    """
    count = section.integer("n_iters")
    if count < 1:
        raise InputError(
            f"{section.place('n_iters')}: got {count}; without training there is nothing to import. To "
            "measure a model, type: whetstone evaluate MODEL"
        )
    findings.put("iterations", count, section.key("n_iters"))
    findings.put("evaluate_every", section.integer("eval_every"), section.key("eval_every"))
    source_value = section.says("save_every", SAVE_EVERY)
    findings.put(
        "save_every", section.integer("save_every", SAVE_EVERY), section.key("save_every"), source_value
    )


def common(section: Section, *, compat: bool) -> Findings:
    """Translate the metrics; evaluate whole splits."""
    findings = Findings()
    size = section.integer("eval_batch_size", None)
    if size is not None:
        findings.leave(section.key("eval_batch_size"), size, "Whetstone chooses the batch size")
    findings.put("evaluation.num_prompts", None, section.where, "whole splits")
    metrics = section.parts("metrics")
    chosen: list[dict[str, Any]] = []
    for metric in metrics:
        for part in _metric(metric, findings):
            translated = as_rl4lms(part) if compat else part
            if translated in chosen:
                findings.warn(f"{metric.where}: {metric.text('id')} is listed twice, but computed once")
            else:
                chosen.append(_labelled(translated, chosen))
    short = [part["name"] if len(part) == 1 else part for part in chosen]
    findings.put(
        "metrics", short, section.key("metrics"), ", ".join(str(metric.text("id")) for metric in metrics)
    )
    for name, warning in (("meteor", METEOR_DISTORTION), ("cider", CIDER_WORDS)):
        if any(part["name"] == name for part in chosen):
            findings.warn(warning)
    return findings


def decoding_of_evaluations(section: Section, frame: Frame, rollout: Decoding, *, masked: bool) -> Findings:
    """Translate `train_evaluation.generation_kwargs`; without it evaluations decode like rollouts."""
    findings = Findings()
    drawn = rollout
    if section.take("generation_kwargs", None) is not None:
        kwargs = section.part("generation_kwargs")
        drawn, notes = decoding(kwargs, frame)
        findings.add(notes)
        evaluations(drawn, rollout, kwargs, findings)
    if masked:
        compat = frame.compat and drawn.num_beams == 1
        findings.warn(
            "NLPO: RL4LMs applies the mask in evaluations, too, although its saved model has no mask. "
            + (
                "The experiment does the same (evaluation.masked=true)"
                if compat
                else "Whetstone evaluates without the mask (evaluation.masked=false)"
            )
        )
        if compat:
            findings.put("evaluation.masked", True, "--compat", "the mask in evaluations")
    return findings


def _metric(section: Section, findings: Findings) -> list[dict[str, Any]]:
    name = section.text("id")
    if name not in METRICS:
        raise section.refuse("id", f"RL4LMs has no such metric{did_you_mean(str(name), METRICS)}")
    arguments = section.part("args", {})
    parts = METRICS[name](arguments, findings)
    arguments.finish()
    section.finish()
    return parts


def _labelled(part: dict[str, Any], chosen: list[dict[str, Any]]) -> dict[str, Any]:
    """Give a second metric of the same name its own label."""
    count = sum(part["name"] == earlier["name"] for earlier in chosen)
    return {**part, "label": f"{part['name']}{count + 1}"} if count else part


def _rouge(arguments: Section, findings: Findings) -> list[dict[str, Any]]:
    single = arguments.flag("use_single_ref", True)
    if not single:
        findings.warn(
            f"{arguments.key('use_single_ref')} is False, so RL4LMs compares a text with all references "
            "printed as one list. Whetstone takes the best reference; --compat restores RL4LMs' way"
        )
    return [{"name": "rouge", "references": "first" if single else "best"}]


def _perplexity(arguments: Section, findings: Findings) -> list[dict[str, Any]]:
    """Translate perplexity to the policy's, of the references or of texts in the meta data."""
    findings.warn(
        f"{arguments.where}: perplexity is measured on the references, not on the policy's texts. It shows "
        "how far the policy has drifted from its domain"
    )
    findings.leave_all(arguments, ["tokenizer_id", "model_type"], "taken from the model")
    if arguments.flag("use_text_from_meta_data", False):
        findings.put(
            "evaluation.perplexity_meta", "reference", arguments.key("use_text_from_meta_data"), True
        )
    stride = arguments.integer("stride", None) or LARGEST_STRIDE
    findings.put("evaluation.perplexity_stride", stride, arguments.key("stride"), arguments.says("stride"))
    return []


def _summac_conv(arguments: Section, findings: Findings) -> list[dict[str, Any]]:
    """Leave out SummaC-Conv without trained weights."""
    options = {key: arguments.take(key, None) for key in SUMMAC_CONV}
    weights = arguments.text("start_file", None)
    if weights is None:
        findings.warn(
            f"{arguments.where}: without start_file RL4LMs' SummaCConv has random weights, so its number "
            "means nothing. The experiment leaves the metric out"
        )
        return []
    chosen = {key: value if (value := options[key]) is not None else SUMMAC_CONV[key] for key in SUMMAC_CONV}
    return [{"name": "summaCConv", "weights": weights, **chosen}]


SUMMAC_CONV = {
    "models": ["mnli", "anli", "vitc"],
    "bins": "even50",
    "granularity": "sentence",
    "nli_labels": "e",
    "agg": "mean",
}
METRICS: dict[str, Reader] = {
    "increasing_numbers": plain("increasing_numbers", min_tokens="min_tokens"),
    "dates": plain("dates"),
    "learned_reward": learned_reward,
    "meteor": plain("meteor"),
    "rouge": _rouge,
    "bert_score": plain("bert_score", language="language"),
    "bleu": plain("bleu"),
    "bleurt": bleurt("config_name"),
    "sacre_bleu": plain("sacre_bleu", **SACRE_BLEU),
    "ter": plain("ter"),
    "chrf": plain("chrf"),
    "rouge_l_max": rouge_l_max,
    "cider": plain("cider"),
    "spice": plain("spice"),
    "diversity": plain("diversity", window_size="window_size"),
    "summaCZS": plain(
        "summaCZS",
        model_name="model",
        granularity="granularity",
        op1="op1",
        op2="op2",
        use_ent="use_ent",
        use_con="use_con",
    ),
    "summaCConv": _summac_conv,
    "causal_perplexity": _perplexity,
    "parent_totto": plain("parent_totto"),
    "bleu_totto": plain("bleu_totto"),
    "intent_accuracy": lambda arguments, findings: [{"name": "intent_accuracy", "join": JOIN}],
}
