"""RL4LMs' rewards and metrics as they are named here, with the options that a file gives, written by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.components import find
from reward_servers.graders import METRICS, REWARDS
from reward_servers.settings import Part
from services.config.settings import RunSettings

Grader = tuple[str, float, Mapping[str, Any]]  # name, weight, the options that the file gives

ROUGE_L_MAX = {
    "length_limit": 100,
    "length_limit_type": "words",
    "alpha": 0.5,
    "weight_factor": 1.2,
    "stemming": True,
}
INTENT = {"join": "last_utterance_unmarked"}  # utterance and answer with nothing between them


def metrics_of(listed: Sequence[Mapping[str, Any]], run: RunSettings) -> tuple[list[Any], list[Any]]:
    """Return what the file lists and what the run computes; a metric that stands twice is computed once."""
    wanted: list[Any] = []
    for entry in listed:
        name, arguments = entry["id"], entry.get("args") or {}
        if name == "causal_perplexity":
            meta = "reference" if arguments.get("use_text_from_meta_data") else None
            wanted.append(("perplexity", arguments["stride"], meta))
        elif (grader := _metric(name, arguments)) not in wanted:
            wanted.append(grader)
    graders = [metric for metric in wanted if metric[0] != "perplexity"]
    got: list[Any] = [
        _only(part, "metric", options) for part, (_, _, options) in zip(run.metrics, graders, strict=False)
    ]
    evaluation = run.evaluation
    if evaluation.perplexity_stride is not None:
        measured = ("perplexity", evaluation.perplexity_stride, evaluation.perplexity_meta)
        got.insert(next((i for i, metric in enumerate(wanted) if metric[0] == "perplexity"), 0), measured)
    return wanted, got + [part.name for part in run.metrics[len(graders) :]]


def rewards_of(section: Mapping[str, Any], run: RunSettings) -> tuple[list[Grader], list[Any]]:
    """Return what the file rewards and what the run does."""
    wanted = _reward(section["id"], section.get("args") or {})
    got = [_only(part, "reward", options) for part, (_, _, options) in zip(run.reward, wanted, strict=False)]
    return wanted, got + [part.name for part in run.reward[len(wanted) :]]


def _reward(name: str, arguments: Mapping[str, Any]) -> list[Grader]:
    shaping: list[Grader] = [(arguments["shaping_fn"], 1.0, {})] if "shaping_fn" in arguments else []
    if name == "intent_accuracy":
        coefficients = arguments["intent_coeff"], arguments["auto_coeff"]
        return [("intent_accuracy", coefficients[0], INTENT), ("meteor", coefficients[1], {})]
    if name == "common_gen_preference_model":
        return [("preference_model", 1.0, {})]
    if name == "sentences_with_dates":
        return [("dates", 1.0, {})]
    if name == "rouge":
        return [("rouge", 1.0, {"rouge_type": arguments["rouge_type"], "references": "first"}), *shaping]
    return [(name, 1.0, _options(name, arguments)), *shaping]


def _metric(name: str, arguments: Mapping[str, Any]) -> Grader:
    if name == "rouge":
        return ("rouge", 1.0, {"references": "first" if arguments.get("use_single_ref", True) else "best"})
    return (name, 1.0, _options(name, arguments))


def _options(name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if name == "rouge_l_max":
        return ROUGE_L_MAX
    if name == "intent_accuracy":
        return INTENT
    if name == "learned_reward":
        include = arguments.get("include_prompt_for_eval", True)
        joined = {"template": "{prompt}{text}"} if include else {"include_prompt": False}
        return {"model": arguments["model_name"], "label_ix": arguments["label_ix"], **joined}
    return {key: value for key, value in arguments.items() if key != "shaping_fn"}


def _only(part: Part, kind: str, options: Mapping[str, Any]) -> Grader:
    """Return the part with these of its options, defaults included."""
    made = find(kind, part.name, {"reward": REWARDS, "metric": METRICS}[kind])(**part.options)
    return (part.name, part.weight, {key: getattr(made, key) for key in options})
