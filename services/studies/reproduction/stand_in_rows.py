"""Make rows in each data set's columns from a few words, for --small without data."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NUM_ROWS = {"train": 64, "validation": 16, "test": 16}
WHO = ("a dog", "the girl", "my uncle", "an old sailor", "the teacher", "a small bird")
DOES = ("finds", "paints", "loses", "carries", "sells", "breaks")
WHAT = ("a red ball", "the boat", "an apple", "two books", "the key", "a heavy box")
WHERE = ("in the garden", "at night", "near the sea", "on the train", "in the kitchen", "after the rain")
FEELING = (("wonderful", 1), ("awful", 0), ("lovely", 1), ("boring", 0))


def write_rows(folder: Path, data: str) -> Path:
    """Write train, validation and test as .jsonl, always with the same rows; return the absolute folder."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in NUM_ROWS.items():
        draw = random.Random(f"{data} {split}")
        rows = (json.dumps(ROWS[data](draw)) + "\n" for _ in range(count))
        (folder / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choice(words) for words in (WHO, DOES, WHAT, WHERE))


def sentences(draw: random.Random, count: int) -> str:
    return " ".join(f"{sentence(draw).capitalize()}." for _ in range(count))


def review(draw: random.Random) -> Row:
    word, label = draw.choice(FEELING)
    return {"text": f"{sentences(draw, 2)} The film is {word}. {sentences(draw, 1)}", "label": label}


def concepts(draw: random.Random) -> Row:
    target = sentence(draw)
    words = [word for word in target.split() if len(word) > 4][:3] or target.split()[:2]
    return {"concepts": words, "target": target, "references": [target]}


def article(draw: random.Random) -> Row:
    return {"article": sentences(draw, 4), "highlights": sentences(draw, 1)}


def table(draw: random.Random) -> Row:
    def cell(value: str, is_header: bool = False) -> Row:
        return {"value": value, "is_header": is_header, "column_span": 1, "row_span": 1}

    year, goals = str(draw.randrange(1900, 2020)), str(draw.randrange(40))
    return {
        "table": [[cell("Year", True), cell("Goals", True)], [cell(year), cell(goals)]],
        "highlighted_cells": [[1, 1]],
        "table_page_title": draw.choice(WHO),
        "table_section_title": "Career",
        "table_section_text": "",
        "sentence_annotations": [{"final_sentence": f"In {year} there were {goals} goals."}],
        "overlap_subset": draw.choice(("True", "False")),
    }


def story(draw: random.Random) -> Row:
    who, what = draw.choice(WHO), draw.choice(WHAT)
    return {
        "question": {"text": f"Who finds {what}?"},
        "document": {"summary": {"text": f"{who} finds {what}. {sentences(draw, 2)}"}},
        "answers": [{"text": who}, {"text": f"it is {who}"}],
    }


def translation(draw: random.Random) -> Row:
    number = draw.randrange(2, 99)
    return {"translation": {"en": f"There are {number} cats.", "de": f"Es gibt {number} Katzen."}}


def dialogue(draw: random.Random) -> Row:
    turns = [f" {sentence(draw)} . " for _ in range(7)]
    return {"dialog": turns, "act": [draw.randrange(1, 5) for _ in turns], "emotion": [0] * 7}


def pair(draw: random.Random) -> Row:
    prompt = f"\n\nHuman: Tell me of {draw.choice(WHAT)}, number {draw.randrange(10_000)}.\n\nAssistant:"
    return {"chosen": f"{prompt} {sentence(draw)}.", "rejected": f"{prompt} No, {sentence(draw)}."}


def comment(draw: random.Random) -> Row:
    score = draw.choice((-12, -8, -7, 70, 90, 300))
    return {
        "parent_text": f"{sentence(draw)} {draw.randrange(10_000)}",
        "text": sentence(draw),
        "score": score,
    }


def knowledge(draw: random.Random) -> Row:
    history = [sentence(draw), f"{sentence(draw)} {draw.randrange(10_000)}"]
    return {"knowledge": sentence(draw), "history": history, "response": sentence(draw)}


def event(draw: random.Random) -> Row:
    relation = draw.choice(("xNeed", "xWant", "xEffect"))
    head = f"PersonX {draw.choice(DOES)} {draw.choice(WHAT)} {draw.randrange(10_000)}"
    return {"head": head, "relation": relation, "tail": f"to be {draw.choice(WHERE)}"}


def problem(draw: random.Random) -> Row:
    first, second = draw.randrange(2, 50), draw.randrange(2, 50)
    question = (
        f"{draw.choice(WHO).capitalize()} has {first} coins and gets {second} more. How many are there?"
    )
    return {"question": question, "answer": f"{first} + {second} = {first + second}\n#### {first + second}"}


def post(draw: random.Random) -> Row:
    return {"prompt": f"POST: {sentences(draw, 3)}\n\nTL;DR:", "completion": f" {sentence(draw)}"}


def reply(draw: random.Random) -> Row:
    return {"text": sentence(draw)}


ROWS: dict[str, Callable[[random.Random], Row]] = {
    "imdb": review,
    "common_gen": concepts,
    "cnn_daily_mail": article,
    "totto": table,
    "narrative_qa": story,
    "iwslt2017": translation,
    "daily_dialog": dialogue,
    "hh_rlhf": pair,
    "reddit": comment,
    "faithdial": knowledge,
    "atomic": event,
    "gsm8k": problem,
    "tldr": post,
    "replies": reply,
}
