"""Rows of a run's own, which nobody has annotated: how they are read, and where their annotation is kept.

data.files ─▶ Responses ─▶ RUN/data/SPLIT/annotated.parquet, where the algorithm needs more than the texts
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from contracts.scores import Score
from services.annotated.parts import ANNOTATED, fingerprint, read_manifest
from services.annotated.responses import Responses, read_responses
from services.annotated.row_columns import ResponseData
from services.annotated.rows import AnnotatedRows, with_ranked
from services.config.settings import RunSettings
from services.models.files import read_model
from services.runs.folder import RunFolder
from services.sources.data_needs import Needs
from services.sources.reading import chat_of
from services.sources.row_rewards import as_table
from services.tasks.base import Split
from services.tasks.responses import ResponseRow
from services.tokens.response_tokens import ResponseTokens


def rows_of(data: ResponseData | None, split: Split) -> Responses:
    """Return the responses of one split; a missing split takes its rows out of train.

    Raises:
        InputError: as `read_responses`.
    """
    assert data is not None, "there are rows only with data="
    of_rows = data.model_dump(include=set(ResponseData.model_fields), exclude_unset=True)
    source = ResponseData(**of_rows)
    return _read(source.model_dump_json(exclude_unset=True), split, _state(source))


@lru_cache(maxsize=4)
def _read(data: str, split: Split, _state: tuple[object, ...]) -> Responses:
    """Read rows once for checks, counts and training, as long as their files stay as they are."""
    return read_responses(ResponseData.model_validate_json(data), None, split)


def _state(data: ResponseData) -> tuple[object, ...]:
    """Return what changes with the files of the rows."""
    places = data.files.values() if isinstance(data.files, dict) else [data.files or data.path]
    found: list[object] = []
    for place in map(Path, places):
        for file in [place, *sorted(place.rglob("*"))] if place.is_dir() else [place]:
            if file.exists():
                stat = file.stat()
                found.append((file.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def kept_in(run: Path, split: Split) -> Path:
    """Return the folder in which a run keeps the annotation of its own rows."""
    return RunFolder(run).data / split


def tokens_of(settings: RunSettings, tokenizer: Any, *, split: Split = "train") -> ResponseTokens:
    """Return the converter of responses to tokens, by the run's own limits and chat template."""
    chat = chat_of(settings.chat_form(read_model(settings.model)), tokenizer)
    limit = settings.prompt_limit(split)
    return ResponseTokens(tokenizer, limit, settings.rollout.max_tokens, room=None, chat=chat)


def is_annotated(folder: Path, rows: Sequence[ResponseRow]) -> bool:
    """Tell whether the folder has the whole annotation of these rows."""
    there = read_manifest(folder).get("rows", {}).get("sha256")
    return (folder / ANNOTATED).exists() and there == fingerprint(rows)


def as_they_are(rows: Sequence[ResponseRow], needs: Needs) -> AnnotatedRows:
    """Return rows without an annotation; where it will bring rewards and values, each row is worth 1 so far.

    So nothing is left out that the annotation may show to be good.
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
    """Return the rows of the first `count` prompts; None: all."""
    if count is None:
        return list(rows)
    groups = list(dict.fromkeys(row.group for row in rows))[:count]
    kept = set(groups)
    return [row for row in rows if row.group in kept]
