"""Stand-ins for what experiments read from the hub: rows with the data sets' columns, and a judge."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.scores import MetricValue, Sample

Row = dict[str, Any]
NUM_ROWS = 4  # of each split


def write_data(folder: Path, task: str) -> Path | None:
    """Three splits of rows such as the task's data set has; None: the task needs none."""
    if task not in ROWS:
        return None
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rows = [ROWS[task](f"{split} {number}") for number in range(NUM_ROWS)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def review(name: str) -> Row:
    return {"text": f"{name} is a film of 7 parts and 9 stars", "label": 1}


def words(name: str) -> Row:
    return {"concepts": ["dog", "ball", name], "target": f"the dog of {name} has a ball"}


def article(name: str) -> Row:
    return {"article": f"In {name} 3 people ran 5 miles. Then they slept.", "highlights": f"{name}: 3 ran."}


def document(name: str) -> Row:
    return {"document": f"In {name} 3 people ran 5 miles.", "summary": f"{name}: 3 ran."}


def pair(name: str) -> Row:
    return {"translation": {"en": f"{name} has 2 cats", "de": f"{name} hat 2 Katzen"}}


def story(name: str) -> Row:
    return {
        "question": {"text": f"Who is {name}?"},
        "document": {"summary": {"text": f"{name} is the king of 4 towns."}},
        "answers": [{"text": "The king"}, {"text": f"King of {name}"}],
    }


def table(name: str) -> Row:
    def cell(value: str, is_header: bool = False) -> Row:
        return {"value": value, "is_header": is_header, "column_span": 1, "row_span": 1}

    return {
        "table": [[cell("Year", True), cell("Goals", True)], [cell("1999"), cell(name)]],
        "highlighted_cells": [[1, 1]],
        "table_page_title": f"A page of {name}",
        "table_section_title": "Career",
        "sentence_annotations": [{"final_sentence": f"In 1999 it was {name}."}],
        "overlap_subset": "True",
    }


def talk(name: str) -> Row:
    return {"dialog": [f"{name} {n} ." for n in range(7)], "act": [1, 2, 3, 4, 1, 2, 3], "emotion": [0] * 7}


def game(name: str) -> Row:
    return {"turns": [{"names": ["MATT"], "utterances": [f"{name} rolls a {n}"]} for n in range(4)]}


ROWS = {
    "imdb": review,
    "imdb_seq2seq": review,
    "commongen": words,
    "cnn_daily_mail": article,
    "xsum": document,
    "totto": table,
    "narrative_qa": story,
    "wmt16": pair,
    "wmt14_en_de": pair,
    "wmt16_newsonly": pair,
    "iwslt2017_en_de": pair,
    "daily_dialog": talk,
    "crd3": game,
}


class Judge:
    """In the place of a grader that needs a model or a program: the share of words that are numbers."""

    def __init__(self, **options: object) -> None:
        self.options = options

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self._share(sample.text.split()) for sample in samples]

    def compute(self, samples: Sequence[Sample]) -> dict[str, MetricValue]:
        rows = tuple(self.score(samples))
        return {"stand_in/share_of_numbers": MetricValue(sum(rows) / len(rows), rows)}

    def _share(self, words: Sequence[str]) -> float:
        return sum(word.isdigit() for word in words) / max(1, len(words))
