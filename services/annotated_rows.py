"""`annotated.parquet`: all stages in one file, row by row, and what of it can be learned from.

Its columns are those of the stage `rewards`; with a reference `prompt_tokens`, `tokens`, `ref_logprobs` and
`cut`; with values `value`. A run that was killed and gone on with writes the same bytes as one that was not.
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
from services.annotation import ANNOTATED, TOLD, Parts, read_manifest, read_table, write_table
from services.annotation_rewards import REWARD, totals
from services.response_tokens import vocabulary_fingerprint

OF_REFERENCE = ("prompt_tokens", "tokens", "ref_logprobs", "cut")


def merge(folder: Path, rewards: Parts, reference: Parts | None, values: Mapping[str, float] | None) -> Path:
    """Write the file of what the stages made, part by part."""

    def tables() -> Iterator[pa.Table]:
        for start in rewards.starts:
            table = rewards.read(start)
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
    """The rows that can be learned from; _M of them.

    Example: of 1,000 responses two were not scored.

        rows.rewards_M.shape == (998,)     rows.left_out == {"not scored": 2}
    """

    table: pa.Table
    rewards_M: NDArray[np.float64] | None  # weighted; None where no reward is asked for
    values_M: NDArray[np.float64] | None  # of each response's prompt; None where there are none
    good_M: NDArray[np.bool_]
    rewards: tuple[Part, ...]
    left_out: Mapping[str, int]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def has_reference(self) -> bool:
        return "ref_logprobs" in self.table.column_names

    def column(self, name: str) -> list[Any]:
        found: list[Any] = self.table[name].to_pylist()
        return found

    def digest(self) -> str:
        """A hash of all that is learned from: another text, token, log-probability, reward or value."""
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
        """Each reward as it was given, unweighted."""
        return {part.label: self.table[REWARD + part.label][place].as_py() for part in self.rewards}


def read_annotated(
    folder: Path,
    rewards: Sequence[Part] | None = None,
    *,
    needs_reference: bool = False,
    needs_values: bool = False,
) -> AnnotatedRows:
    """The rows that can be learned from; the others are counted.

    Args:
        rewards: those whose weighted sum is the reward, labelled as they were annotated: scores are laid on
            anew, not made anew. None: as the annotation was told; (): nobody's, the order alone.
        needs_values: they were learned for these very rewards, and are told.

    Raises:
        InputError: the annotation is not there or not finished, lacks a reward, the reference's
            log-probabilities or the values, or has no row to learn from.
    """
    manifest = _finished(folder)
    asked = parts(manifest.get("rewards", {}).get(TOLD, [])) if rewards is None else tuple(rewards)
    table = read_table(folder / ANNOTATED)
    rewards_M = totals(table, asked, str(folder / ANNOTATED)) if asked else None
    _check_stages(folder, table, needs_reference=needs_reference, needs_values=needs_values)
    values_M = np.array(table["value"].to_pylist(), float) if needs_values else None
    if needs_values:
        _check_weights(folder, manifest, asked)
    usable_M, left_out = np.ones(table.num_rows, bool), Counter[str]()
    reasons = {"not scored": None if rewards_M is None else np.isfinite(rewards_M)}
    if "tokens" in table.column_names:
        reasons["cut to nothing"] = pc.list_value_length(table["tokens"]).to_numpy() > 0
    for reason, is_fine_M in reasons.items():
        if is_fine_M is not None and (num_wrong := int((usable_M & ~is_fine_M).sum())):
            left_out[reason] += num_wrong
            usable_M &= is_fine_M
    if not usable_M.any():
        told = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise InputError(f"data={folder}: none of {table.num_rows} responses can be learned from: {told}")
    table = table.filter(pa.array(usable_M)).combine_chunks()
    return AnnotatedRows(
        table=table,
        rewards_M=None if rewards_M is None else rewards_M[usable_M],
        values_M=None if values_M is None else values_M[usable_M],
        good_M=np.array(table["good"].to_pylist(), bool),
        rewards=asked,
        left_out=left_out,
    )


def check_vocabulary(folder: Path, tokenizer: Any) -> None:
    """Kept tokens are those of one vocabulary: a model with another one can't train on them.

    Raises:
        InputError: the reference's is another one.
    """
    found = read_manifest(folder).get("reference")
    if found is not None and found.get("vocabulary") != vocabulary_fingerprint(tokenizer):
        raise InputError(
            f"data={folder} was annotated with reference={found.get(TOLD)}, whose vocabulary is another one "
            f"than the model's; annotate with a reference that shares it, such as the model itself"
        )


def weights_of(rewards: Sequence[Part]) -> list[dict[str, Any]]:
    """What the manifest says of the rewards' sum: `parts(…)` of it gives them back."""
    return [{**part.model_dump(mode="json", exclude={"options"}), **part.options} for part in rewards]


def _finished(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if not manifest:
        raise InputError(
            f"data={folder}: no annotation is there; whetstone annotate … output={folder} makes one"
        )
    if not (folder / ANNOTATED).exists():
        raise InputError(
            f"data={folder}: the annotation is not finished; the command that began it goes on with it"
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
                f"{option} adds them, and does nothing again that is done"
            )


def _check_weights(folder: Path, manifest: Mapping[str, Any], asked: Sequence[Part]) -> None:
    """A value is of the sum that it was learned from: an advantage over another one would mean nothing."""
    learned_from = manifest.get("value", {}).get("rewards")
    now = json.loads(json.dumps(weights_of(asked)))
    if now != learned_from:
        raise InputError(
            f"data={folder}: its values were learned for the rewards {learned_from}, asked for are {now}. "
            "whetstone annotate with these, value=true and overwrite=true learns them anew; no response is "
            "scored again"
        )
