"""Translate a whole RL4LMs file into an experiment, and write the experiment as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contracts.errors import InputError
from services.studies.rl4lms import supervised
from services.studies.rl4lms.alg import alg
from services.studies.rl4lms.datapool import datapool
from services.studies.rl4lms.env import cut_prompts, env, tokenizer
from services.studies.rl4lms.evaluation import common, decoding_of_evaluations, iterations
from services.studies.rl4lms.findings import Findings, nested
from services.studies.rl4lms.reading import Section, read
from services.studies.rl4lms.reward import reward_fn

CHOICES = {"task": "task.name", "algorithm": "algorithm.name"}  # go into the defaults list
ORDER = (
    *("model", "seed", "iterations", "evaluate_every", "save_every", "keep_checkpoints"),
    *("task", "reward", "metrics", "rollout", "algorithm", "learner", "evaluation"),
)


def read_configuration(path: Path, *, compat: bool = False, train_rows: int | None = None) -> Findings:
    """Translate an RL4LMs file into Whetstone's options.

    Args:
        compat: repeat RL4LMs' known errors.
        train_rows: rows of a supervised file's data; None: those of the published data set.

    Raises:
        InputError: the file is not YAML, or has a key or value that RL4LMs lacks; the message names the line.
    """
    whole = read(path)
    kind = whole.part("alg").text("id")
    findings = _supervised(whole, train_rows, compat) if "supervised" in str(kind) else _rl(whole, compat)
    whole.finish()
    for text in whole.source.oddities:
        findings.warn(text)
    return findings


def to_yaml(findings: Findings, title: str) -> str:
    """Return the file for conf/experiment/: choices, then options that differ from their defaults."""
    import yaml

    kept = {key: value for key, value in findings.options.items() if key not in CHOICES.values()}
    options = dict(sorted(kept.items(), key=lambda item: ORDER.index(item[0].partition(".")[0])))
    lines = ["# @package _global_", f"# {title}", "defaults:"]
    lines += [f"  - override /{group}: {findings.options[key]}" for group, key in CHOICES.items()]
    body: str = yaml.dump(nested(options), Dumper=_dumper(), sort_keys=False, width=110, allow_unicode=True)
    return "\n".join([*lines, "", body])


def _rl(whole: Section, compat: bool) -> Findings:
    findings = Findings()
    surroundings, notes = env(whole.part("env"))
    findings.add(notes)
    algorithm, notes = alg(whole.part("alg"), surroundings, compat=compat)
    findings.add(notes)
    words, notes = tokenizer(whole.part("tokenizer"), algorithm.model)
    findings.add(notes)
    if words.max_length is not None:
        findings.leave("tokenizer.max_length", words.max_length, "env.args.max_prompt_length decides")
    findings.leave(words.cut.key, words.cut.source_value, "env and alg.policy have sides of their own")
    findings.add(datapool(whole.part("datapool"))[1])
    findings.add(cut_prompts(surroundings.cut, algorithm.cut))
    findings.add(reward_fn(whole.part("reward_fn"), compat=compat))
    evaluation = whole.part("train_evaluation")
    iterations(evaluation, findings)
    findings.add(common(evaluation, compat=compat))
    findings.add(
        decoding_of_evaluations(evaluation, algorithm.frame, algorithm.rollout, masked=algorithm.masked)
    )
    evaluation.finish()
    return findings


def _supervised(whole: Section, train_rows: int | None, compat: bool) -> Findings:
    findings = Findings()
    section = whole.part("alg")
    words, notes = tokenizer(whole.part("tokenizer"), section.text("model_name"))
    findings.add(notes)
    pool, notes = datapool(whole.part("datapool"))
    findings.add(notes)
    findings.add(cut_prompts(words.cut, words.cut))
    findings.add(supervised.alg(section, pool, train_rows, words.max_length, compat=compat)[1])
    evaluation = whole.part("train_evaluation")
    findings.add(common(evaluation, compat=compat))
    evaluation.finish()
    for name in ("env", "reward_fn"):
        if name in whole:
            raise InputError(f"{whole.place(name)}: supervised training (alg.id) has no {name}; leave it out")
    return findings


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
