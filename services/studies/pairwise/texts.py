"""Read two sides' texts for the same prompts, and pair them."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.conversations.thoughts import behind_thought, opening_mark
from contracts.errors import InputError
from contracts.whole_texts import expect_whole
from services.runs.folder import RunFolder, is_run
from services.runs.nearby import runs_near
from services.studies.crowdsourcing.texts import fingerprint

REFERENCES = "references"  # names the data set's own responses as a side
FIRST_REFERENCE = re.compile(r"<START-1>(.*?)<END-1>", re.DOTALL)
EXPECTED = (
    "expected a run's folder, a file of predictions that a run or whetstone evaluate has written, or lines "
    '{"prompt": "…", "prediction": "…"}'
)


@dataclass(frozen=True, slots=True)
class Written:
    """One side's text for one prompt, without its thought."""

    id: str  # the prompt's name, or its text where the source has no names
    prompt: str
    text: str
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts for one prompt; a prompt may have several pairs.

    Example: `Pair("hh/test/3", "How do I …", "First, …", "I can't …")`
    """

    id: str
    prompt: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs for common prompts, and the number of unpaired texts."""

    pairs: Sequence[Pair]
    only_a: int
    only_b: int


def read_pairs(a: str, b: str, num_prompts: int | None = None) -> Pairs:
    """Pair A's and B's texts for the same prompts.

    Args:
        b: a source as `a`, or "references": A's first reference of each prompt.
        num_prompts: size of a random sample of prompts, the same at every call; None: all.

    Raises:
        InputError: a side can't be read, no prompt is in both, or one name stands for two prompts.
    """
    side_a = read_side(a)
    side_b = _references(side_a, a) if b == REFERENCES else read_side(b)
    left, right = _by_place(side_a), _by_place(side_b)
    pairs = [_pair(written, right[place]) for place, written in left.items() if place in right]
    if not pairs:
        raise InputError(
            f"{a} and {b} have no prompt in common: {len(left)} and {len(right)} texts, their first prompts "
            f"are {side_a[0].prompt[:80]!r} and {side_b[0].prompt[:80]!r}. Expected evaluations of one split"
        )
    counts = (len(left) - len(pairs), len(right) - len(pairs))
    if num_prompts is not None:
        by_chance = sorted(pairs, key=lambda pair: fingerprint(pair.id, pair.prompt))
        drawn = set(list(dict.fromkeys((pair.id, pair.prompt) for pair in by_chance))[:num_prompts])
        pairs = [pair for pair in by_chance if (pair.id, pair.prompt) in drawn]
    return Pairs(pairs, *counts)


def read_side(source: str) -> list[Written]:
    """Read one side from a run's folder or a file of predictions.

    Raises:
        InputError: the side can't be read; the message names the file, the row and the fault.
    """
    path = Path(source)
    if is_run(path):
        epochs = RunFolder(path).prediction_epochs("test")
        if not epochs:
            raise InputError(f"{source}: this run has no predictions for test prompts yet")
        rows: Any = RunFolder(path).predictions(epochs[-1], "test")
    else:
        rows = _rows_of(path)
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{source}: {EXPECTED}")
    texts = []
    for number, row in enumerate(rows, start=1):
        expect_whole(row, f"{source}, row {number}")
        texts.append(_written(row, f"{source}, row {number}"))
    return texts


def _rows_of(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; {EXPECTED}{runs_near(path)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        content = json.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is not JSON: {error}; {EXPECTED}") from None
    return content.get("predictions") if isinstance(content, dict) else content


def _written(row: Any, where: str) -> Written:
    """Return the text in a row of a run or of `whetstone score`'s input."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: got {row!r:.80}; {EXPECTED}")
    prompt, text = row.get("prompt_text", row.get("prompt")), row.get("generated_text", row.get("prediction"))
    if not isinstance(prompt, str) or not isinstance(text, str):
        raise InputError(f"{where}: has {', '.join(map(str, row)) or 'nothing'}; {EXPECTED}")
    opened = opening_mark(str(row.get("prompt_as_read", prompt))) is not None
    answer = behind_thought(text, opened)
    return Written(
        str(row.get("sample_id", row.get("id", prompt))), prompt, answer or "", _first_reference(row, where)
    )


def _first_reference(row: Mapping[str, Any], where: str) -> str | None:
    references = row.get(REFERENCES)
    texts = [references] if isinstance(references, str) else references
    if not texts:
        texts = FIRST_REFERENCE.findall(str(row.get("ref_text", "")))
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: {REFERENCES} is {references!r:.80}; expected a text or a list of texts")
    return texts[0] if texts else None


def _references(side: Iterable[Written], source: str) -> list[Written]:
    """Return the references as a side, without prompts if all references begin with them."""
    references = [
        Written(written.id, written.prompt, written.reference)
        for written in side
        if written.reference is not None
    ]
    # imdb's references begin with the prompt; a single one may by chance
    if all(written.text.startswith(written.prompt) for written in references):
        references = [
            Written(written.id, written.prompt, written.text.removeprefix(written.prompt))
            for written in references
        ]
    if not references:
        raise InputError(f"{source}: its prompts have no references to compare with")
    return references


def _by_place(side: Iterable[Written]) -> dict[tuple[str, int], Written]:
    """Index texts by prompt and by order among the prompt's texts."""
    seen: Counter[str] = Counter()
    by_place = {}
    for written in side:
        by_place[written.id, seen[written.id]] = written
        seen[written.id] += 1
    return by_place


def _pair(a: Written, b: Written) -> Pair:
    if a.prompt != b.prompt:
        raise InputError(
            f"prompt {a.id} is {a.prompt[:80]!r} on the one side and {b.prompt[:80]!r} on the other; "
            "expected two evaluations of one task"
        )
    return Pair(a.id, a.prompt, a.text, b.text)
