"""Findings from reading a section: options of the experiment, rows of the table, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.studies.rl4lms.reading import Section, shown


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table: a key of RL4LMs' file and its translation, without a target if omitted.

    Example: `Row("env.n_envs × alg.args.n_steps", "10 × 128 tokens", "rollout.prompts_per_iteration", "27")`
    """

    source: str
    source_value: str
    target: str | None
    value: str


@dataclass(slots=True)
class Findings:
    """Options by dotted key, in the order of their discovery.

    Example: after `found.put("rollout.top_k", 50, "alg.policy.args.generation_kwargs.top_k")` the tree is
    `{"rollout": {"top_k": 50}}`.
    """

    options: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def put(self, target: str, value: Any, source: str, source_value: Any = None) -> None:
        """Set `target` to `value`, and note the file's key `source` with its value `source_value`.

        If `source_value` is None, the file's value is `value` itself. If the file may lack the key, pass
        `Section.says(key, default)`.
        """
        self.options[target] = value
        self.rows.append(
            Row(source, shown(value if source_value is None else source_value), target, shown(value))
        )

    def leave(self, source: str, source_value: Any, why: str) -> None:
        """Note a key that has no effect in Whetstone."""
        self.rows.append(Row(source, shown(source_value), None, why))

    def leave_all(self, section: Section, keys: Sequence[str], why: str) -> None:
        """Note the keys that the file sets."""
        for key in keys:
            value = section.take(key, None)
            if value is not None:
                self.leave(section.key(key), value, why)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def add(self, other: Findings) -> None:
        self.options |= other.options
        self.rows += other.rows
        for text in other.warnings:
            self.warn(text)

    def tree(self) -> dict[str, Any]:
        return nested(self.options)


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Nest a mapping by its dotted keys.

    >>> nested({"seed": 1, "rollout.top_k": 50, "rollout.top_p": 0.9})
    {'seed': 1, 'rollout': {'top_k': 50, 'top_p': 0.9}}
    """
    tree: dict[str, Any] = {}
    for key, value in options.items():
        *folders, leaf = key.split(".")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[leaf] = value
    return tree
