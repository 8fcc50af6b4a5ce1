"""Write `annotated.parquet`, the results of all stages, and read its rows for training.

It has the columns of the stage `rewards`; with a reference also `prompt_tokens`, `tokens`, `ref_logprobs`
and `cut`; with values also `value`. A killed and resumed run writes the same bytes as an uninterrupted one.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from contracts.errors import InputError
from contracts.rollout import Prompt
from reward_servers.settings import Part, parts
from services.data.annotated.parts import ANNOTATED, TOLD, Parts, read_manifest, read_table, write_table
from services.data.annotated.reward_columns import GRADES, REWARD, totals
from services.data.tokens.response_tokens import vocabulary_fingerprint

OF_REFERENCE = ("prompt_tokens", "tokens", "ref_logprobs", "cut")
RANKED = "ranked"  # column of `AnnotatedRows`: whether the data's row ranks several responses


def merge(folder: Path, rewards: Parts, reference: Parts | None, values: Mapping[str, float] | None) -> Path:
    """Write the results of all stages into one file, part by part; return its path."""

    def tables() -> Iterator[pa.Table]:
        for start in rewards.starts:
            table = rewards.read(start)
            if GRADES not in table.column_names:  # from a version without grades
                table = table.append_column(GRADES, pa.nulls(len(table), pa.string()))
            if reference is not None:
                scored = reference.read(start)
                for name in OF_REFERENCE:
                    table = table.append_column(scored.schema.field(name), scored[name])
            if values is not None:
                of_rows = [values[name] for name in table["prompt_id"].to_pylist()]
                table = table.append_column("value", pa.array(of_rows, pa.float64()))
            yield table

    write_table(folder / ANNOTATED, tables())
    return folder / ANNOTATED


@dataclass(frozen=True, slots=True)
class AnnotatedRows:
    """The M rows that training can use.

    Example: of 1,000 responses, two were not scored.

        rows.rewards_M.shape == (998,)     rows.left_out == {"not scored": 2}
    """

    table: pa.Table
    rewards_M: NDArray[np.float64] | None  # weighted; None without rewards
    values_M: NDArray[np.float64] | None  # value of each response's prompt; None if not needed
    good_M: NDArray[np.bool_]
    rewards: tuple[Part, ...]
    left_out: Mapping[str, int]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def has_reference(self) -> bool:
        return "ref_logprobs" in self.table.column_names

    def column(self, name: str) -> list[Any]:
        values: list[Any] = self.table[name].to_pylist()
        return values

    def digest(self) -> str:
        """Return a hash of all that training uses: texts, tokens, log-probabilities, rewards and values."""
        digest = hashlib.sha256()
        for name in ("prompt", "response", "group", "order"):
            digest.update(json.dumps(self.column(name)).encode())
        for name in ("prompt_tokens", "tokens", "ref_logprobs") if self.has_reference else ():
            lists = self.table[name]
            for numbers in (pc.list_value_length(lists), pc.list_flatten(lists)):
                digest.update(numbers.to_numpy().tobytes())
        for values_M in (self.rewards_M, self.values_M, self.good_M):
            digest.update(b"none" if values_M is None else values_M.tobytes())
        return digest.hexdigest()

    def prompt(self, place: int) -> Prompt:
        names = ("prompt_id", "prompt", "references", "meta")
        name, text, references, meta = (self.table[column][place].as_py() for column in names)
        return Prompt(name, text, tuple(references), json.loads(meta))

    def reward_parts(self, place: int) -> dict[str, float]:
        """Return a row's rewards by label, unweighted, without rewards that give no value for it."""
        by_label = {part.label: self.table[REWARD + part.label][place].as_py() for part in self.rewards}
        return {label: value for label, value in by_label.items() if value is not None}


def read_annotated(
    folder: Path,
    rewards: Sequence[Part] | None = None,
    *,
    needs_reference: bool = False,
    needs_values: bool = False,
) -> AnnotatedRows:
    """Read the rows that training can use, and count the others.

    Args:
        rewards: rewards to sum up, under their labels in the annotation; weights may be new.
            None: the annotation's rewards and weights; (): no rewards, only the order of responses.
        needs_reference: whether the reference's log-probabilities are required.
        needs_values: whether values are required; they must have been learned for the same rewards.

    Raises:
        InputError: the annotation is missing or unfinished, lacks a reward, the reference's
            log-probabilities or the values, or has no row to learn from.
    """
    manifest = _finished(folder)
    reward_parts = parts(manifest.get("rewards", {}).get(TOLD, [])) if rewards is None else tuple(rewards)
    table = with_ranked(read_table(folder / ANNOTATED))
    rewards_M = totals(table, reward_parts, str(folder / ANNOTATED)) if reward_parts else None
    _check_stages(folder, table, needs_reference=needs_reference, needs_values=needs_values)
    values_M = np.array(table["value"].to_pylist(), float) if needs_values else None
    if needs_values:
        _check_weights(folder, manifest, reward_parts)
    usable_M, left_out = np.ones(table.num_rows, bool), Counter[str]()
    reasons = {"not scored": None if rewards_M is None else np.isfinite(rewards_M)}
    if "tokens" in table.column_names:
        reasons["cut to nothing"] = pc.list_value_length(table["tokens"]).to_numpy() > 0
    for reason, is_fine_M in reasons.items():
        if is_fine_M is not None and (num_wrong := int((usable_M & ~is_fine_M).sum())):
            left_out[reason] += num_wrong
            usable_M &= is_fine_M
    if not usable_M.any():
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise InputError(f"data={folder}: none of {table.num_rows} responses can be learned from: {counts}")
    table = table.filter(pa.array(usable_M)).combine_chunks()
    return AnnotatedRows(
        table=table,
        rewards_M=None if rewards_M is None else rewards_M[usable_M],
        values_M=None if values_M is None else values_M[usable_M],
        good_M=np.array(table["good"].to_pylist(), bool),
        rewards=reward_parts,
        left_out=left_out,
    )


def check_vocabulary(folder: Path, tokenizer: Any) -> None:
    """Check that the saved tokens come from the vocabulary of the model to train.

    Raises:
        InputError: the reference model had another vocabulary.
    """
    reference = read_manifest(folder).get("reference")
    if reference is not None and reference.get("vocabulary") != vocabulary_fingerprint(tokenizer):
        raise InputError(
            f"data={folder} was annotated with reference={reference.get(TOLD)}, whose vocabulary differs "
            f"from the model's; annotate with a reference that shares it, such as the model itself"
        )


def weights_of(rewards: Sequence[Part]) -> list[dict[str, Any]]:
    """Return the rewards and their weights for the manifest, in the form that `parts(…)` reads."""
    return [{**part.model_dump(mode="json", exclude={"options"}), **part.options} for part in rewards]


def with_ranked(table: pa.Table) -> pa.Table:
    """Add the column RANKED, before rows are left out."""
    names = table["prompt_id"].to_pylist()
    sizes = Counter(names)
    return table.append_column(RANKED, pa.array([sizes[name] > 1 for name in names], pa.bool_()))


def _finished(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if not manifest:
        raise InputError(
            f"data={folder}: there is no annotation and no rows; expected {folder}/train.jsonl or another "
            f"file of rows, or the annotation that whetstone annotate … output={folder} makes"
        )
    if not (folder / ANNOTATED).exists():
        raise InputError(
            f"data={folder}: the annotation is not finished; the command that began it continues it"
        )
    return manifest


def _check_stages(folder: Path, table: pa.Table, *, needs_reference: bool, needs_values: bool) -> None:
    for needed, column, what, option in (
        (needs_reference, "ref_logprobs", "log-probabilities of a reference", "reference=MODEL"),
        (needs_values, "value", "values of its prompts", "reference=MODEL value=true"),
    ):
        if needed and column not in table.column_names:
            raise InputError(
                f"data={folder} has no {what}, which the algorithm needs: the command that annotated it with "
                f"{option} adds them, and repeats no finished work"
            )


def _check_weights(folder: Path, manifest: Mapping[str, Any], reward_parts: Sequence[Part]) -> None:
    """Check that the values were learned for these rewards and weights, because advantages compare both."""
    learned_from = manifest.get("value", {}).get("rewards")
    now = json.loads(json.dumps(weights_of(reward_parts)))
    if now != learned_from:
        raise InputError(
            f"data={folder}: its values were learned for the rewards {learned_from}; this run has "
            f"{now}. whetstone annotate with these, value=true and overwrite=true learns them again; no "
            "response is scored again"
        )
