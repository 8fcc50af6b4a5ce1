"""Read the texts for people to judge, from CSV files or from runs' predictions."""

import csv
import hashlib
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InputError, there_are
from contracts.whole_texts import expect_whole
from services.studies.crowdsourcing.questions import Questions

LIKERT_COLUMNS = ("prompt", "machine_completion", "algorithm")
PAIRWISE_COLUMNS = ("prompt", "choice_A", "choice_B", "choice_A_id", "choice_B_id")
OTHER_NAME = "concept"  # the column prompt in RL4LMs' pairwise files


@dataclass(frozen=True, slots=True)
class Text:
    """One model's text.

    Example: `Text("dog frisbee catch", "The dog catches the frisbee.", "ppo")`
    """

    prompt: str
    text: str
    algorithm: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models' texts for one prompt."""

    first: Text
    second: Text


def read_texts(sources: Sequence[str]) -> list[Text]:
    """Read single texts for ratings, without repeats.

    Args:
        sources: CSV files with the columns prompt, machine_completion, algorithm; or ALGORITHM=FILE.json
            with predictions of a run or of `whetstone evaluate`.

    Raises:
        InputError: a file can't be read or lacks something.
    """
    texts: dict[Text, None] = {}
    for source in sources:
        rows = _run_texts(source) if _is_json(source) else _csv_texts(Path(source))
        texts |= dict.fromkeys(rows)
    return list(texts)


def read_pairs(sources: Sequence[str]) -> list[Pair]:
    """Read pairs from one CSV file, or pair all texts that share a prompt.

    Raises:
        InputError: a file can't be read or lacks something, or no prompt has two texts.
    """
    if len(sources) == 1 and not _is_json(sources[0]):
        rows = read_csv(Path(sources[0]))
        if "choice_A" in rows[0]:
            return list(dict.fromkeys(_pair(row, Path(sources[0]), n) for n, row in enumerate(rows, start=2)))
    by_prompt: dict[str, list[Text]] = {}
    for text in read_texts(sources):
        by_prompt.setdefault(text.prompt, []).append(text)
    pairs = [
        Pair(first, second)
        for texts in by_prompt.values()
        for first, second in itertools.combinations(texts, 2)
        if first.algorithm != second.algorithm
    ]
    if not pairs:
        raise InputError(
            f"{' '.join(sources)}: no prompt has texts of two algorithms, so there is nothing to compare"
        )
    return pairs


def example_csv(kind: str, questions: Questions) -> str:
    """Return an example file for `read_texts` or `read_pairs`."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(PAIRWISE_COLUMNS if kind == "pairwise" else LIKERT_COLUMNS)
    for prompt, first, second in questions.examples:
        if kind == "pairwise":
            writer.writerow([prompt, first, second, "model_1", "model_2"])
        else:
            writer.writerows([[prompt, first, "model_1"], [prompt, second, "model_2"]])
    return file.getvalue()


def some(items: Iterable[Any], num_prompts: int | None) -> list[Any]:
    """Return the texts or pairs of a random sample of prompts, the same at every call."""
    listed = list(items)
    if num_prompts is None:
        return listed
    drawn = set(sorted({_prompt(item) for item in listed}, key=fingerprint)[:num_prompts])
    return [item for item in listed if _prompt(item) in drawn]


def fingerprint(*texts: str) -> str:
    """Return ten letters of a hash, the same on every machine.

    The first is an x, so that no spreadsheet reads 12e4567890 as a number.
    """
    return "x" + hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:9]


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, at least one.

    Raises:
        InputError: the file can't be read, is not UTF-8, has no rows, or has a row with more or fewer values
            than columns.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 (byte {error.start}); save it as CSV UTF-8") from None
    reader = csv.DictReader(io.StringIO(content, newline=""))
    csv.field_size_limit(10_000_000)  # an article in one cell
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: is not CSV: {error}") from None
    if not rows:
        raise InputError(f"{path}: has no rows; expected a line of columns and a line for each row")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise InputError(
                f"{path}, row {number}: has {'more' if None in row else 'fewer'} values than there are "
                'columns; a text with a comma, a quote or a line break goes in "quotes"'
            )
    return rows


def need_columns(row: Mapping[str, str], columns: Iterable[str], path: Path, hint: str = "") -> None:
    """Check that a row has the columns.

    Raises:
        InputError: a column is missing.
    """
    missing = [column for column in columns if column not in row]
    if missing:
        raise InputError(
            f"{path}: lacks the column {missing[0]}; {there_are(row, 'columns')}{hint and f'. {hint}'}"
        )


def _csv_texts(path: Path) -> list[Text]:
    rows = read_csv(path)
    hint = ""
    if path.suffix == ".json":
        hint = "Give a run's predictions with the algorithm's name: ALGORITHM=FILE.json"
    need_columns(rows[0], LIKERT_COLUMNS, path, hint)
    texts = [Text(row["prompt"], row["machine_completion"], row["algorithm"].strip()) for row in rows]
    for number, text in enumerate(texts, start=2):
        if not text.algorithm:
            raise InputError(f"{path}, row {number}: algorithm is empty; expected the text's author")
    return texts


def _pair(row: Mapping[str, str], path: Path, number: int) -> Pair:
    if "prompt" not in row and OTHER_NAME in row:
        row = {**row, "prompt": row[OTHER_NAME]}
    need_columns(row, PAIRWISE_COLUMNS, path)
    first, second = row["choice_A_id"].strip(), row["choice_B_id"].strip()
    if not first or not second or first == second:
        raise InputError(
            f"{path}, row {number}: choice_A_id is {first!r} and choice_B_id {second!r}; expected two names"
        )
    return Pair(Text(row["prompt"], row["choice_A"], first), Text(row["prompt"], row["choice_B"], second))


def _is_json(source: str) -> bool:
    return "=" in source and source.endswith(".json") and not Path(source).exists()


def _run_texts(source: str) -> list[Text]:
    """Read `epoch_N_test_split_predictions.json` of a run's folder, or evaluate's --output."""
    algorithm, _, name = source.partition("=")
    path = Path(name)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    rows = rows.get("predictions") if isinstance(rows, dict) else rows
    keys = ("prompt_text", "generated_text")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: expected a list of predictions, such as a run writes")
    for number, row in enumerate(rows, start=1):
        expect_whole(row, f"{path}, row {number}")
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys):
            raise InputError(f"{path}: expected rows with prompt_text and generated_text, got {row!r:.120}")
    return [Text(row["prompt_text"], row["generated_text"], algorithm) for row in rows]


def _prompt(item: Text | Pair) -> str:
    return item.prompt if isinstance(item, Text) else item.first.prompt
