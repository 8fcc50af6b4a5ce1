"""Translate a whole RL4LMs file into an experiment, and write the experiment as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.rl4lms import supervised
from services.rl4lms.alg import alg
from services.rl4lms.datapool import datapool
from services.rl4lms.env import cut_prompts, env, tokenizer
from services.rl4lms.evaluation import common, decoding_of_evaluations, iterations
from services.rl4lms.findings import Findings, nested
from services.rl4lms.reading import Section, read
from services.rl4lms.reward import reward_fn

CHOICES = {"task": "task.name", "algorithm": "algorithm.name"}  # go into the defaults list
ORDER = (
    *("model", "seed", "iterations", "evaluate_every", "save_every", "keep_checkpoints"),
    *("task", "reward", "metrics", "rollout", "algorithm", "learner", "evaluation"),
)


def read_configuration(path: Path, *, compat: bool = False, train_rows: int | None = None) -> Findings:
    """Translate an RL4LMs file into Whetstone's options.

    Args:
        compat: repeat RL4LMs where it is known to be wrong.
        train_rows: rows of a supervised file's data; None: those of the published data set.

    Raises:
        InputError: the file is no YAML, or has a key or value that RL4LMs lacks; names the line.
    """
    whole = read(path)
    kind = whole.part("alg").text("id")
    found = _supervised(whole, train_rows, compat) if "supervised" in str(kind) else _rl(whole, compat)
    whole.finish()
    for text in whole.source.oddities:
        found.warn(text)
    return found


def to_yaml(found: Findings, title: str) -> str:
    """Return the file for conf/experiment/: the choices, then the options that differ from their defaults."""
    import yaml

    kept = {key: value for key, value in found.options.items() if key not in CHOICES.values()}
    options = dict(sorted(kept.items(), key=lambda item: ORDER.index(item[0].partition(".")[0])))
    lines = ["# @package _global_", f"# {title}", "defaults:"]
    lines += [f"  - override /{group}: {found.options[key]}" for group, key in CHOICES.items()]
    body: str = yaml.dump(nested(options), Dumper=_dumper(), sort_keys=False, width=110, allow_unicode=True)
    return "\n".join([*lines, "", body])


def _rl(whole: Section, compat: bool) -> Findings:
    found = Findings()
    surroundings, notes = env(whole.part("env"))
    found.add(notes)
    algorithm, notes = alg(whole.part("alg"), surroundings, compat=compat)
    found.add(notes)
    words, notes = tokenizer(whole.part("tokenizer"), algorithm.model)
    found.add(notes)
    if words.max_length is not None:
        found.leave("tokenizer.max_length", words.max_length, "env.args.max_prompt_length holds")
    found.leave(words.cut.key, words.cut.said, "env and policy have their own")
    found.add(datapool(whole.part("datapool"))[1])
    found.add(cut_prompts(surroundings.cut, algorithm.cut))
    found.add(reward_fn(whole.part("reward_fn"), compat=compat))
    evaluation = whole.part("train_evaluation")
    iterations(evaluation, found)
    found.add(common(evaluation, compat=compat))
    found.add(
        decoding_of_evaluations(evaluation, algorithm.frame, algorithm.rollout, masked=algorithm.masked)
    )
    evaluation.finish()
    return found


def _supervised(whole: Section, train_rows: int | None, compat: bool) -> Findings:
    found = Findings()
    section = whole.part("alg")
    words, notes = tokenizer(whole.part("tokenizer"), section.text("model_name"))
    found.add(notes)
    pool, notes = datapool(whole.part("datapool"))
    found.add(notes)
    found.add(cut_prompts(words.cut, words.cut))
    found.add(supervised.alg(section, pool, train_rows, words.max_length, compat=compat)[1])
    evaluation = whole.part("train_evaluation")
    found.add(common(evaluation, compat=compat))
    evaluation.finish()
    for name in ("env", "reward_fn"):
        if name in whole:
            raise InputError(f"{whole.place(name)}: supervised training has no {name}; alg.id names it")
    return found


def _dumper() -> Any:
    """Return a YAML dumper that writes lists of parts on one line each."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def in_flow(dumper: Any, value: list[Any]) -> Any:
        plain = all(not isinstance(item, dict | list) for item in value)
        node = dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=plain)
        for item in node.value:
            item.flow_style = True
        return node

    Dumper.add_representer(list, in_flow)
    return Dumper
