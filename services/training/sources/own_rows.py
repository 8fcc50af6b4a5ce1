"""Rows of a run without an annotation: how they are read, and where the run keeps their annotation.

data.files ─▶ Responses ─▶ RUN/data/SPLIT/annotated.parquet, if the algorithm needs more than texts
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from contracts.scores import Score
from services.config.settings import RunSettings
from services.data.annotated.parts import ANNOTATED, fingerprint, read_manifest
from services.data.annotated.responses import Responses, read_responses
from services.data.annotated.row_columns import ResponseData
from services.data.annotated.rows import AnnotatedRows, with_ranked
from services.data.tasks.base import Split
from services.data.tasks.responses import ResponseRow
from services.data.tokens.response_tokens import ResponseTokens
from services.models.files import read_model
from services.runs.folder import RunFolder
from services.training.sources.data_needs import Needs
from services.training.sources.reading import chat_of
from services.training.sources.row_rewards import as_table


def rows_of(data: ResponseData | None, split: Split) -> Responses:
    """Return the responses of one split; a missing split takes its rows out of train.

    Raises:
        InputError: as `read_responses`.
    """
    assert data is not None, "rows need data="
    of_rows = data.model_dump(include=set(ResponseData.model_fields), exclude_unset=True)
    source = ResponseData(**of_rows)
    return _read(source.model_dump_json(exclude_unset=True), split, _state(source))


@lru_cache(maxsize=4)
def _read(data: str, split: Split, _state: tuple[object, ...]) -> Responses:
    """Read rows once for checks, counts and training, until their files change."""
    return read_responses(ResponseData.model_validate_json(data), None, split)


def _state(data: ResponseData) -> tuple[object, ...]:
    """Return a key that changes with the files of the rows."""
    places = data.files.values() if isinstance(data.files, dict) else [data.files or data.path]
    states: list[object] = []
    for place in map(Path, places):
        for file in [place, *sorted(place.rglob("*"))] if place.is_dir() else [place]:
            if file.exists():
                stat = file.stat()
                states.append((file.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(states)


def kept_in(run: Path, split: Split) -> Path:
    """Return the folder in which a run keeps the annotation of its rows."""
    return RunFolder(run).data / split


def tokens_of(settings: RunSettings, tokenizer: Any, *, split: Split = "train") -> ResponseTokens:
    """Return the converter of responses to tokens, with the run's limits and chat template."""
    chat = chat_of(settings.chat_form(read_model(settings.model)), tokenizer)
    limit = settings.prompt_limit(split)
    return ResponseTokens(tokenizer, limit, settings.rollout.max_tokens, room=None, chat=chat)


def is_annotated(folder: Path, rows: Sequence[ResponseRow]) -> bool:
    """Tell whether the folder has the whole annotation of these rows."""
    there = read_manifest(folder).get("rows", {}).get("sha256")
    return (folder / ANNOTATED).exists() and there == fingerprint(rows)


def as_they_are(rows: Sequence[ResponseRow], needs: Needs) -> AnnotatedRows:
    """Return rows without an annotation. If it will add rewards and values, each row is worth 1 for now.

    So no row is left out that the annotation may find good.
    """
    table = with_ranked(as_table(range(len(rows)), rows, (), [Score(None)] * len(rows)))
    return AnnotatedRows(
        table=table.combine_chunks(),
        rewards_M=np.ones(len(rows)) if needs.scores else None,
        values_M=np.zeros(len(rows)) if needs.values else None,
        good_M=np.array([row.is_good for row in rows], bool),
        rewards=(),
        left_out={},
    )


def first_groups(rows: Sequence[ResponseRow], count: int | None) -> list[ResponseRow]:
    """Return the rows of the first `count` prompts; None: all rows."""
    if count is None:
        return list(rows)
    groups = list(dict.fromkeys(row.group for row in rows))[:count]
    kept = set(groups)
    return [row for row in rows if row.group in kept]
