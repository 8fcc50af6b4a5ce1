"""Write the pages on which people judge texts: for a browser without a server, and for Mechanical Turk.

texts ─▶ items, shuffled by a seed, nameless ─┬▶ page.html (all items; answers are downloaded as CSV)
                                              ├▶ mturk.html, mturk.csv (one item for each task)
                                              └▶ key.csv (the writer of each text; not shown to raters)
"""

import csv
import html
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contracts.errors import InputError
from services.runs.json_lines import write_atomically
from services.runs.spreadsheets import FORMULA, as_text
from services.studies.crowdsourcing.questions import Questions
from services.studies.crowdsourcing.texts import (
    Pair,
    Text,
    example_csv,
    fingerprint,
    read_pairs,
    read_texts,
    some,
)
from services.terminal.templates import templates_in

Kind = Literal["likert", "pairwise"]
SCALE = (1, 2, 3, 4, 5)
FIELDS: dict[Kind, tuple[str, ...]] = {
    "likert": ("machine_completion",),
    "pairwise": ("choice_A", "choice_B"),
}
KEYS: dict[Kind, tuple[str, ...]] = {"likert": ("algorithm",), "pairwise": ("choice_A_id", "choice_B_id")}


@dataclass(frozen=True, slots=True)
class Item:
    """A text or pair to judge. Its id ignores the order of its texts, so pages of all seeds have the same
    items.

    Example: `Item("3f…", "dog catch", ("The dog catches it.", "Dog dog."), ("ppo", "supervised"))`
    """

    id: str
    prompt: str
    texts: tuple[str, ...]
    algorithms: tuple[str, ...]


def likert_items(texts: Sequence[Text], seed: int) -> list[Item]:
    """Return an item for each text, in the seed's order."""
    items = [
        Item(
            fingerprint(text.prompt, text.text, text.algorithm), text.prompt, (text.text,), (text.algorithm,)
        )
        for text in texts
    ]
    random.Random(seed).shuffle(items)
    return items


def pairwise_items(pairs: Sequence[Pair], seed: int) -> list[Item]:
    """Return an item for each pair; the seed decides order and sides."""
    draw = random.Random(seed)
    items = {}
    for pair in pairs:
        sides = sorted((pair.first, pair.second), key=lambda text: (text.algorithm, text.text))
        name = fingerprint(*(part for side in sides for part in (side.prompt, side.text, side.algorithm)))
        if draw.random() < 0.5:
            sides.reverse()
        texts, algorithms = tuple(s.text for s in sides), tuple(s.algorithm for s in sides)
        items[name] = Item(name, pair.first.prompt, texts, algorithms)
    shuffled = list(items.values())
    draw.shuffle(shuffled)
    return shuffled


def items_from(kind: Kind, sources: Sequence[str], seed: int, num_prompts: int | None) -> list[Item]:
    """Return the files' items, or a sample of `num_prompts` prompts' items.

    Raises:
        InputError: a file can't be read or lacks something.
    """
    if kind == "pairwise":
        return pairwise_items(some(read_pairs(sources), num_prompts), seed)
    return likert_items(some(read_texts(sources), num_prompts), seed)


def write_example(kind: Kind, questions: Questions, out: Path) -> Path:
    """Write an example file of texts into `out`; return its path.

    Raises:
        InputError: `out` can't be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        return write_atomically(out / f"{kind}-example.csv", example_csv(kind, questions))
    except OSError as error:
        raise InputError(f"--out {out}: can't be written: {error.strerror}") from None


def write_pages(
    kind: Kind, questions: Questions, items: Sequence[Item], out: Path, name: str, title: str
) -> list[Path]:
    """Write NAME.html, NAME-key.csv, NAME-mturk.html and NAME-mturk.csv.

    Raises:
        InputError: `out` can't be written, or holds the key of other texts under that name.
    """
    page = fingerprint(kind, name, *(item.id for item in items))
    key = key_csv(kind, items, page)
    texts = {
        f"{name}.html": page_html(kind, questions, items, page, title),
        f"{name}-key.csv": key,
        f"{name}-mturk.html": mturk_html(kind, questions),
        f"{name}-mturk.csv": mturk_csv(kind, items, page),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        there = out / f"{name}-key.csv"
        if there.exists() and _writers(there.read_text(encoding="utf-8")) != _writers(key):
            raise InputError(
                f"{there} is the key of other texts, and without it their answers are worth nothing. "
                "Choose another --out or --seed"
            )
        return [write_atomically(out / file, text) for file, text in texts.items()]
    except OSError as error:
        raise InputError(f"--out {out}: can't be written: {error.strerror}") from None


def key_csv(kind: Kind, items: Sequence[Item], page: str) -> str:
    """Return the key with each item's algorithms and prompt; no other file names algorithms."""
    in_order = sorted(items, key=lambda item: item.id)
    rows = [(page, item.id, *item.algorithms, fingerprint(item.prompt)) for item in in_order]
    return _csv(("page", "item", *KEYS[kind], "prompt"), rows)


def _writers(key: str) -> list[dict[str, str]]:
    """Return a key's rows without prompts, which keys of older versions lack."""
    rows = csv.DictReader(io.StringIO(key))
    return [{column: value for column, value in row.items() if column != "prompt"} for row in rows]


def page_html(kind: Kind, questions: Questions, items: Sequence[Item], page: str, title: str) -> str:
    """Return one page with all items. It shows models' texts and never runs them."""
    return _render("page.html.j2", kind=kind, questions=questions, items=items, page=page, title=title)


def mturk_html(kind: Kind, questions: Questions) -> str:
    """Return the page of one item, with `${…}` for its texts; `mturk_csv` has the columns."""
    variables = tuple("${" + field + "}" for field in FIELDS[kind])
    item = Item("${item}", "${prompt}", variables, ())
    return _render("mturk.html.j2", kind=kind, questions=questions, item=item)


def mturk_csv(kind: Kind, items: Sequence[Item], page: str) -> str:
    """Return a line for each item. Escape texts, because Mechanical Turk inserts them unchanged."""
    rows = [(page, item.id, *(escaped(text) for text in (item.prompt, *item.texts))) for item in items]
    return _csv(("page", "item", "prompt", *FIELDS[kind]), rows)


def escaped(text: str) -> str:
    """Escape a text for HTML, including `$` and a spreadsheet formula's beginning.

    >>> escaped('<b>"a"</b> costs ${5}\\nb')
    '&lt;b&gt;&quot;a&quot;&lt;/b&gt; costs &#36;{5}<br>b'
    >>> escaped("=1+1")
    '&#61;1+1'
    """
    lines = html.escape(text).replace("$", "&#36;").splitlines()
    shown = "<br>".join(lines)
    return f"&#{ord(shown[0])};{shown[1:]}" if shown.startswith(FORMULA) else shown


def _csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([as_text(cell) for cell in row] for row in rows)
    return file.getvalue()


def _render(template: str, **values: object) -> str:
    environment = templates_in(Path(__file__).parent)
    shared: Mapping[str, object] = {"scale": SCALE, "letters": "AB"}
    return environment.get_template(template).render(**shared, **values)
