"""Translate `datapool`: RL4LMs' pools become tasks, and arguments keep their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.components import find
from contracts.errors import did_you_mean
from services.data.tasks import TASKS
from services.studies.rl4lms.findings import Findings
from services.studies.rl4lms.reading import REQUIRED, Section


@dataclass(frozen=True, slots=True)
class Pool:
    """Pool: its task in Whetstone, its arguments with RL4LMs' defaults, and its train split's rough size."""

    task: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    train_rows: int | None = None
    as_there: Mapping[str, Any] = field(default_factory=dict)  # options without an argument in RL4LMs


WRAPPED = {"prompt_prefix": "", "prompt_suffix": ""}
PAIR = {"wmt_id": REQUIRED, "source_language": REQUIRED, "target_language": REQUIRED}
POOLS = {
    "dummy_pool": Pool("dummy", {"prompt": REQUIRED, "n_samples": 100}, 100),
    "imdb": Pool("imdb", {"seed": REQUIRED}, 20_000),
    "imdb_seq2seq": Pool("imdb_seq2seq", {"positive_ratio": 1.0}, 10_000),
    "commongen": Pool(
        "commongen",
        {"concept_separator_token": " ", "concept_end_token": " ", "prefix": "summarize: "},
        67_389,
        {"references": "target"},
    ),
    "cnn_daily_mail": Pool(
        "cnn_daily_mail", {**WRAPPED, "truncate_article": None, "max_size": None}, 287_113
    ),
    "totto": Pool("totto", {"representation": REQUIRED}, 120_761),
    "narrative_qa": Pool("narrative_qa", {}, 32_747),
    "wmt16": Pool("wmt16", {**PAIR, **WRAPPED}, 4_548_885),
    "wmt14_processed_en_de": Pool("wmt14_en_de", WRAPPED, 4_548_885),
    "wmt16newsonly": Pool("wmt16_newsonly", WRAPPED, 223_153),
    "iwslt2017en_de": Pool("iwslt2017_en_de", WRAPPED, 206_112),
    "crd3": Pool("crd3", {"max_context_size": REQUIRED}),
    "daily_dialog": Pool("daily_dialog", {"context_size": REQUIRED}, 35_781),
}
IMDB_SEED = 42  # seed of RL4LMs' other configurations


def datapool(section: Section) -> tuple[Pool, Findings]:
    """Return the pool, and put `task` with its options into the findings.

    Raises:
        InputError: a pool or argument is unknown, or a required argument is missing.
    """
    findings = Findings()
    name = section.text("id")
    if name not in POOLS:
        raise section.refuse("id", f"RL4LMs has no such datapool{did_you_mean(str(name), POOLS)}")
    pool = POOLS[name]
    arguments = section.part("args", {})
    findings.put("task.name", pool.task, section.key("id"), name)
    if name == "imdb" and "seed" not in arguments:
        findings.warn(
            f"{arguments.key('seed')} is missing, and RL4LMs' imdb fails at its start without it (as RL4LMs' "
            f"own imdb_text_continuation/gpt2_a2c does). Whetstone sets task.seed={IMDB_SEED}"
        )
    for key, default in pool.arguments.items():
        value = arguments.take(key, IMDB_SEED if key == "seed" else default)
        if key in arguments:
            findings.put(f"task.{key}", value, arguments.key(key))
        elif value != _default_here(pool.task, key):
            source_value = arguments.says(key, None if default is REQUIRED else default)
            findings.put(f"task.{key}", value, arguments.key(key), source_value)
    for option, value in pool.as_there.items():
        findings.put(f"task.{option}", value, section.key("id"), name)
    arguments.finish()
    section.finish()
    _warn(name, findings)
    return pool, findings


def _default_here(task: str, option: str) -> Any:
    field = find("task", task, TASKS).model_fields.get(option)  # type: ignore[attr-defined]
    return field.default if field else None


def _warn(name: str, findings: Findings) -> None:
    if name == "commongen":
        findings.warn(
            "datapool.id: commongen: RL4LMs compares a text with the one target of its row. The experiment "
            "does the same (task.references=target); task.references=all compares with every sentence of the "
            "words"
        )
    if name == "daily_dialog":
        findings.warn(
            "datapool.id: daily_dialog: in RL4LMs <EOU> is plain text, and no answer stops at it. The "
            "experiment does the same; rollout.stop=['<EOU>'] ends an answer at <EOU>"
        )
