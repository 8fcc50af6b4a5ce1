"""From texts to what a person opens: pages that work from a file, and the same for Mechanical Turk.

texts ─▶ items, shuffled by a seed, nameless ─┬▶ page.html (all items; answers are downloaded as CSV)
                                              ├▶ mturk.html, mturk.csv (one item a task)
                                              └▶ key.csv (who wrote what; stays with whoever asks)
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
from services.crowdsourcing.questions import Questions
from services.crowdsourcing.texts import Pair, Text, fingerprint
from services.json_lines import write_atomically

Kind = Literal["likert", "pairwise"]
SCALE = (1, 2, 3, 4, 5)
FIELDS: dict[Kind, tuple[str, ...]] = {
    "likert": ("machine_completion",),
    "pairwise": ("choice_A", "choice_B"),
}
KEYS: dict[Kind, tuple[str, ...]] = {"likert": ("algorithm",), "pairwise": ("choice_A_id", "choice_B_id")}


@dataclass(frozen=True, slots=True)
class Item:
    """What is judged at once. Its id names the texts whatever their order, so that pages of other seeds
    ask about the same items.

    Example: `Item("3f…", "dog catch", ("The dog catches it.", "Dog dog."), ("ppo", "supervised"))`
    """

    id: str
    prompt: str
    texts: tuple[str, ...]
    algorithms: tuple[str, ...]


def likert_items(texts: Sequence[Text], seed: int) -> list[Item]:
    """Every text by itself, in an order of the seed's."""
    items = [
        Item(
            fingerprint(text.prompt, text.text, text.algorithm), text.prompt, (text.text,), (text.algorithm,)
        )
        for text in texts
    ]
    random.Random(seed).shuffle(items)
    return items


def pairwise_items(pairs: Sequence[Pair], seed: int) -> list[Item]:
    """Every pair, in an order and with sides of the seed's."""
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
    """Who wrote what, and for which prompt: the one file with the algorithms' names."""
    in_order = sorted(items, key=lambda item: item.id)
    rows = [(page, item.id, *item.algorithms, fingerprint(item.prompt)) for item in in_order]
    return _csv(("page", "item", *KEYS[kind], "prompt"), rows)


def _writers(key: str) -> list[dict[str, str]]:
    """What a key says of the texts; the prompts are not in those of older versions."""
    rows = csv.DictReader(io.StringIO(key))
    return [{column: value for column, value in row.items() if column != "prompt"} for row in rows]


def page_html(kind: Kind, questions: Questions, items: Sequence[Item], page: str, title: str) -> str:
    """One page with all items. Texts are shown and never run, whatever a model wrote."""
    return _render("page.html.j2", kind=kind, questions=questions, items=items, page=page, title=title)


def mturk_html(kind: Kind, questions: Questions) -> str:
    """One item with `${…}` in the place of its texts, filled from the columns of `mturk_csv`."""
    variables = tuple("${" + field + "}" for field in FIELDS[kind])
    item = Item("${item}", "${prompt}", variables, ())
    return _render("mturk.html.j2", kind=kind, questions=questions, item=item)


def mturk_csv(kind: Kind, items: Sequence[Item], page: str) -> str:
    """A line an item. Texts are escaped here, since `${…}` is replaced by them as they are."""
    rows = [(page, item.id, *(escaped(text) for text in (item.prompt, *item.texts))) for item in items]
    return _csv(("page", "item", "prompt", *FIELDS[kind]), rows)


def escaped(text: str) -> str:
    """
    >>> escaped('<b>"a"</b> costs ${5}\\nb')
    '&lt;b&gt;&quot;a&quot;&lt;/b&gt; costs &#36;{5}<br>b'
    """
    lines = html.escape(text).replace("$", "&#36;").splitlines()
    return "<br>".join(lines)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return file.getvalue()


def _render(template: str, **values: object) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared: Mapping[str, object] = {"scale": SCALE, "letters": "AB"}
    return environment.get_template(template).render(**shared, **values)
