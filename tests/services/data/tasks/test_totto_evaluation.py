"""ToTTo from the data's own columns to the official evaluation's values, which are computed anew here."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from contracts.rollout import Prompt
from contracts.scores import Sample
from reward_servers.graders.parent import Parent, ParentTotto
from services.data.tasks.totto import Totto

WORDS = ("Ann", "Lee", "film", "The", "Long", "way", "1990", "A|B", "U.S.", "2,000", "won", "in", ".", ",")


# The official evaluation


def words(text: str) -> list[str]:
    return Tokenizer13a()(text.strip().lower()).split()


def ngrams(text: Sequence[str], order: int) -> Iterator[tuple[str, ...]]:
    return zip(*(text[start:] for start in range(order)), strict=False)


def longest_common(left: Sequence[str], right: Sequence[str]) -> int:
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, word in enumerate(left, 1):
        for j, other in enumerate(right, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if word == other else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1]


def official(row: dict[str, Any], text: str) -> tuple[float, float, float]:
    """Precision, recall and F of a text, of columns as the data set has them: section 3 of the PARENT paper
    over two tables. Precision may draw from every cell, the titles and the section's text; recall asks for
    the highlighted cells and the titles.
    """
    cells = [cell["value"] for line in row["table"] for cell in line]
    highlighted = [row["table"][line][place]["value"] for line, place in row["highlighted_cells"]]
    titles = [row["table_page_title"], row["table_section_title"]]

    def table(values: Sequence[str]) -> list[list[str]]:
        return [words(value.replace("|", "-")) for value in values if value]

    pool = {word for value in table([*cells, *titles, row["table_section_text"]]) for word in value}
    wanted = table([*highlighted, *titles])
    written = words(text or "<null>")
    references = [annotation["final_sentence"] for annotation in row["sentence_annotations"]]

    def weight(ngram: Sequence[str]) -> float:
        return sum(word in pool for word in ngram) / len(ngram)

    def mentioned(sentence: Sequence[str]) -> float:
        return sum(longest_common(value, sentence) / len(value) for value in wanted) / len(wanted)

    def against(reference: list[str]) -> tuple[float, float, float]:
        precisions, recalls = [], []
        for order in (1, 2, 3, 4):
            counts, other = Counter(ngrams(written, order)), Counter(ngrams(reference, order))
            credit = 0.0
            for ngram, count in counts.items():
                agrees = min(1.0, other[ngram] / count)
                credit += count * (agrees + (1 - agrees) * weight(ngram))
            precisions.append(credit / counts.total() if counts else 0.0)
            total = sum(count * weight(ngram) for ngram, count in other.items())
            hit = sum(
                count * weight(ngram) * min(1.0, counts[ngram] / count) for ngram, count in other.items()
            )
            recalls.append(hit / total if total else 1.0)
        tiny = 1e-5
        precision = math.prod(value or tiny for value in precisions) ** 0.25 if precisions[0] else 0.0
        own_recall = math.prod(value or tiny for value in recalls) ** 0.25 if recalls[0] else tiny
        share = 1 - mentioned(reference)
        recall = own_recall ** (1 - share) * (mentioned(written) or tiny) ** share
        return precision, recall, 2 * precision * recall / (precision + recall + 1e-8)

    padded = [words(reference) for reference in references] + [words("<null>")] * (3 - len(references))
    return max((against(reference) for reference in padded), key=lambda scores: scores[2])


# Rows in the data set's own columns


def made_row(rng: random.Random) -> dict[str, Any]:
    def some(most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))

    table = [
        [
            {"value": some(4), "is_header": line == 0, "column_span": 1, "row_span": 1}
            for _ in range(rng.randint(1, 4))
        ]
        for line in range(rng.randint(1, 4))
    ]
    places = [[line, rng.randrange(len(table[line]))] for line in range(len(table)) if rng.random() < 0.7]
    return {
        "table": table,
        "highlighted_cells": places or [[0, 0]],
        "table_page_title": some(3),
        "table_section_title": rng.choice(["", some(2)]),
        "table_section_text": rng.choice(["", "This is a list of tall buildings.", some(6)]),
        "overlap_subset": rng.random() < 0.5,
        "sentence_annotations": [{"final_sentence": some(9)} for _ in range(rng.randint(1, 3))],
    }


def prompts_of(folder: Path, rows: Sequence[dict[str, Any]]) -> Sequence[Prompt]:
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(Totto(data_files=str(folder)).prompts("validation"))


@pytest.fixture
def samples_of(tmp_path: Path) -> Callable[..., list[Sample]]:
    """The samples of texts about rows, as the task makes them."""

    def samples(rows: Sequence[dict[str, Any]], texts: Sequence[str]) -> list[Sample]:
        prompts = prompts_of(tmp_path, rows)
        return [
            Sample(text, prompt.text, prompt.references, prompt.meta)
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    return samples


def test_parent_of_the_tasks_prompts_is_the_official_evaluations(samples_of: Any) -> None:
    rng = random.Random(7)
    rows = [made_row(rng) for _ in range(150)]
    texts = [
        rng.choice(
            [
                "",
                row["sentence_annotations"][0]["final_sentence"],
                f"{row['table_section_text']} {row['table_page_title']}",
                " ".join(rng.choices(WORDS, k=rng.randint(1, 12))),
            ]
        )
        for row in rows
    ]
    expected = [official(row, text) for row, text in zip(rows, texts, strict=True)]
    values = ParentTotto().compute(samples_of(rows, texts))
    for place, key in enumerate(("/precision", "/recall", "_f_score")):
        metric = values[f"table_to_text/parent_overall{key}"]
        assert metric.rows == pytest.approx([value[place] for value in expected], abs=1e-9)
        overlap = [value[place] for value, row in zip(expected, rows, strict=True) if row["overlap_subset"]]
        subset = values[f"table_to_text/parent_overlap{key}"].corpus
        assert subset == pytest.approx(sum(overlap) / len(overlap), abs=1e-9)
    assert len({value[0] for value in expected}) > 30


def test_precision_may_draw_from_the_sections_text_and_recall_does_not_ask_for_it(samples_of: Any) -> None:
    """By hand: "Lee is tall" of a table with "Lee", whose section says "a list of who is tall"."""
    row = {
        "table": [[{"value": "Lee", "is_header": False, "column_span": 1, "row_span": 1}]],
        "highlighted_cells": [[0, 0]],
        "table_page_title": "Lee",
        "table_section_title": "",
        "table_section_text": "A list of who is tall",
        "sentence_annotations": [{"final_sentence": "Lee"}],
    }
    with_text, without = samples_of([row, {**row, "table_section_text": ""}], ["Lee is tall"] * 2)
    drawn, other = (ParentTotto(null_references=False).compute([one]) for one in (with_text, without))
    # every word is in the table or its section, so orders 1 to 3 are 1; the fourth has no n-gram: 0, smoothed
    assert drawn["table_to_text/parent_overall/precision"].corpus == pytest.approx((1e-5) ** 0.25)
    # one word of three; of "Lee is" half counts, of "is tall" nothing; of all three one third
    assert other["table_to_text/parent_overall/precision"].corpus == pytest.approx(
        (1 / 3 * 1 / 4 * 1 / 3 * 1e-5) ** 0.25
    )
    recalls = [metrics["table_to_text/parent_overall/recall"].corpus for metrics in (drawn, other)]
    assert recalls == pytest.approx([1.0, 1.0])
    assert Parent().score([with_text]) > Parent().score([without])


def test_a_row_without_the_column_has_no_sections_text(tmp_path: Path) -> None:
    row = made_row(random.Random(1))
    del row["table_section_text"]
    (prompt,) = prompts_of(tmp_path, [row])
    assert "table_section_text" not in prompt.meta
    (with_text,) = prompts_of(tmp_path, [{**row, "table_section_text": "About it"}])
    assert with_text.meta["table_section_text"] == "About it"
    assert with_text.text == prompt.text  # no part of what the model reads
