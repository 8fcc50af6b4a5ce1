"""Read people's answers, from the pages' files or Mechanical Turk's batches, and join them with the key."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError, there_are
from services.runs.spreadsheets import text_of
from services.studies.crowdsourcing.pages import SCALE
from services.studies.crowdsourcing.texts import need_columns, read_csv

SIDES = ("A", "B")
NO_AXES = {"page", "item", "rater", "choice", "algorithm", "choice_A_id", "choice_B_id", "prompt"}

Key = Mapping[tuple[str, str], Mapping[str, str]]  # (page, item) → the row with its writers


@dataclass(frozen=True, slots=True)
class Rating:
    """One person's judgement of one text, without unanswered axes.

    Example: `Rating("3f…", "ann", "ppo", {"fluency": 4, "commonsense": 2})`
    """

    item: str
    rater: str
    algorithm: str
    scores: Mapping[str, int]
    prompt: str = ""  # fingerprint of the text's prompt; "" if unknown


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's choice between two algorithms in alphabetical order.

    Example: `Vote("3f…", "ann", ("ppo", "supervised"), "ppo")`
    """

    item: str
    rater: str
    pair: tuple[str, str]
    winner: str
    prompt: str = ""  # prompt, as in a rating


@dataclass(frozen=True, slots=True)
class _Answer:
    row: Mapping[str, str]
    where: str  # place, for messages


def read_answers(files: Sequence[Path], keys: Sequence[Path]) -> list[Rating] | list[Vote]:
    """Read ratings or votes from the files.

    Raises:
        InputError: a column is missing, an answer is invalid, an item is in no key, or a person answered
            twice.
    """
    answers = [answer for file in files for answer in _answers(file)]
    key = _read_keys(keys)
    _refuse_doubles(answers)
    are_votes = {"choice" in answer.row for answer in answers}
    if are_votes == {True, False}:
        raise InputError("some files compare two texts and others rate one; give one kind at a time")
    if are_votes == {True}:
        votes = [vote for answer in answers if (vote := _vote(answer, key)) is not None]
        _refuse_mixed_items((vote.item, " and ".join(vote.pair)) for vote in votes)
        return votes
    ratings = [rating for answer in answers if (rating := _rating(answer, key)).scores]
    _refuse_mixed_items((rating.item, rating.algorithm) for rating in ratings)
    return ratings


def _answers(file: Path) -> list[_Answer]:
    # Answers that were rejected on Mechanical Turk don't count.
    accepted = [row for row in read_csv(file) if row.get("AssignmentStatus") != "Rejected"]
    if not accepted:
        raise InputError(f"{file}: every assignment was rejected; there is nothing to count")
    rows = [_plain_names(row) for row in accepted]
    hint = "Expected a file that a page lets download, or a batch of Mechanical Turk"
    need_columns(rows[0], ("item", "rater"), file, hint)
    if not set(rows[0]) - (NO_AXES - {"choice"}):
        raise InputError(f"{file}: has no column with answers; {there_are(rows[0], 'columns')}")
    answers = [_Answer(row, f"{file}, row {number}") for number, row in enumerate(rows, start=2)]
    for answer in answers:
        for column in ("item", "rater"):
            if not answer.row[column].strip():
                raise InputError(f"{answer.where}: {column} is empty")
    return answers


def _plain_names(row: Mapping[str, str]) -> dict[str, str]:
    """Strip Mechanical Turk's prefixes from a row's columns.

    >>> _plain_names({"HITId": "1", "WorkerId": "w", "Input.item": "3f", "Answer.fluency": "4"})
    {'item': '3f', 'rater': 'w', 'fluency': '4'}
    """
    if "WorkerId" not in row:
        return dict(row)
    wanted = ("page", "item", "prompt", "algorithm", "choice_A_id", "choice_B_id")
    inputs = {name: row[f"Input.{name}"] for name in wanted if f"Input.{name}" in row}
    answers = {
        name.removeprefix("Answer."): value for name, value in row.items() if name.startswith("Answer.")
    }
    return {**inputs, "rater": row["WorkerId"], **answers}


def _read_keys(files: Iterable[Path]) -> Key:
    key: dict[tuple[str, str], dict[str, str]] = {}
    for file in files:
        rows = read_csv(file)
        need_columns(rows[0], ("page", "item"), file, "Expected the …-key.csv beside a page")
        key |= {(row["page"], row["item"]): row for row in rows}
    return key


def _refuse_doubles(answers: Iterable[_Answer]) -> None:
    seen: dict[tuple[str, str], _Answer] = {}
    for answer in answers:
        whose = (answer.row["item"], answer.row["rater"])
        if whose in seen:
            raise InputError(
                f"{answer.where}: {whose[1]} has answered item {whose[0]} already, in {seen[whose].where}. "
                "Two people with one name, or a file given twice?"
            )
        seen[whose] = answer


def _refuse_mixed_items(items: Iterable[tuple[str, str]]) -> None:
    """Refuse an item name shared by several texts or pairs, such as a prompt's number."""
    writer: dict[str, str] = {}
    for item, algorithm in items:
        if writer.setdefault(item, algorithm) != algorithm:
            raise InputError(
                f"item {item} is of {writer[item]} in one answer and of {algorithm} in another; expected a "
                "number for each text, not for each prompt"
            )


def _named(answer: _Answer, key: Key, columns: Sequence[str]) -> list[str]:
    """Return the row's writers, or else the key's."""
    row: Mapping[str, str] = answer.row
    if not all(column in row for column in columns):
        if not key:
            raise InputError(
                f"{answer.where}: does not say who wrote the text; give --key FILE, the page's key.csv"
            )
        try:
            row = key[row.get("page", ""), row["item"]]
        except KeyError:
            raise InputError(
                f"{answer.where}: no key lists item {row['item']} of page {row.get('page', '')!r}. "
                "Give each page's key.csv with --key"
            ) from None
        if not all(column in row for column in columns):
            raise InputError(
                f"{answer.where}: the key lacks {' and '.join(columns)}, so it is for the other kind of page "
                "(ratings or pairs)"
            )
    return [text_of(row[column]) for column in columns]


def _prompt(answer: _Answer, key: Key) -> str:
    """Return the prompt's fingerprint from the key, or from the row."""
    row = key.get((answer.row.get("page", ""), answer.row["item"]), {})
    return row.get("prompt") or answer.row.get("prompt", "")


def _rating(answer: _Answer, key: Key) -> Rating:
    (algorithm,) = _named(answer, key, ("algorithm",))
    axes = [column for column in answer.row if column not in NO_AXES]
    scores = {axis: _score(answer, axis) for axis in axes if answer.row[axis].strip()}
    return Rating(answer.row["item"], answer.row["rater"].strip(), algorithm, scores, _prompt(answer, key))


def _score(answer: _Answer, axis: str) -> int:
    text = answer.row[axis].strip()
    if text not in map(str, SCALE):
        raise InputError(
            f"{answer.where}: {axis} is {text!r}; expected a whole number from {SCALE[0]} to {SCALE[-1]}, "
            "or nothing"
        )
    return int(text)


def _vote(answer: _Answer, key: Key) -> Vote | None:
    choice = answer.row["choice"].strip().upper()
    if not choice:
        return None
    if choice not in SIDES:
        raise InputError(f"{answer.where}: choice is {choice!r}; expected A or B, or nothing")
    sides = _named(answer, key, ("choice_A_id", "choice_B_id"))
    first, second = sorted(sides)
    if first == second:
        raise InputError(f"{answer.where}: both texts are of {first}; expected two algorithms")
    winner, rater = sides[SIDES.index(choice)], answer.row["rater"].strip()
    return Vote(answer.row["item"], rater, (first, second), winner, _prompt(answer, key))
