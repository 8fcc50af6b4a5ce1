"""Texts that attack whoever looks at them: in pages, on a terminal, in a spreadsheet, as a chat template."""

import csv
import html
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text as RichText

from contracts.conversations import rendering
from contracts.conversations.chat_settings import ChatForm
from contracts.conversations.rendering import Rendering
from contracts.errors import InputError
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from services import cli
from services.commands import generate
from services.inference.chat.conversation import converse
from services.inference.chat.speaker import Answer
from services.inference.publishing.card import write_card
from services.runs.folder import RunFolder
from services.runs.report.report import write_report
from services.runs.report.terminal import episode_view
from services.runs.tracking.console import Console
from services.studies.comparison.compare import write_comparison
from services.studies.crowdsourcing.answers import read_answers
from services.studies.crowdsourcing.pages import Item, key_csv, mturk_csv, page_html
from services.studies.crowdsourcing.questions import questions_for
from services.studies.crowdsourcing.tables import write_tables
from services.terminal.screens import Screen
from services.training.plan.first_prompt import PromptAsRead
from services.training.plan.screen import _prompt
from tests.models import make_tiny_model
from tests.services.runs.report.test_report import CONFIG

HARMLESS = "harmless"
IN_PAGES = (
    "</script></style></title></svg><script>alert(1)</script><img src=x onerror=alert(1)>"
    "\" onmouseover=\"alert(1) ' onfocus='alert(1)",
    "javascript:alert(1) ]]> --> $\\frac$",
    "{{ 7 * 7 }}{% raw %} a\x00b \u202e \x1b[2J",
)
ON_TERMINALS = (
    "\x1b[2J",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;http://evil\x1b\\here",
    "a\rb",
    "\x9b2J",
    "\u202ebidi\u2066",
    "[red]x[/red] :smile: [/]",
    "\ud800",
)
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Shape(HTMLParser):
    """Elements of a page with the names of their attributes, and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[tuple[str, tuple[str, ...]]] = set()
        self.links: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add((tag, tuple(sorted(name for name, _ in attrs))))
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "action")}


def run_of(place: Path, name: str, text: str) -> RunFolder:
    """A run in which everything that people or models wrote is `text`."""
    named = {"model": {"path": text}, "task": {"name": text}, "reward": [{"name": text}], "run_name": text}
    folder = RunFolder.open(place, name, {**CONFIG, **named}, resume="auto")
    for iteration in (1, 2):
        numbers = {"reward/mean": 0.5, f"reward/{text}/mean": 0.1, f"parts/{text}/reward/mean": 0.2}
        folder.append_rollout_info(iteration, numbers)
    words = ("sample_id", "prompt_text", "prompt_as_read", "generated_text", "ref_text", "comment", text)
    row = {word: text for word in words} | {"reward": 0.5, f"m/{text}": 1.0, "meta": {text: text}}
    for epoch in (0, 2):
        folder.append_evaluation(epoch, "val", {"reward/mean": epoch / 2, f"m/{text}": 1.0})
        folder.write_predictions(epoch, "val", [row])
    return folder


def pages_of(place: Path, text: str) -> dict[str, str]:
    runs = [run_of(place, name, text) for name in ("one", "two")]
    items = [Item("a1", text, (text,), ("ppo",))]
    return {
        "report": write_report(runs[0]).read_text(),
        "comparison": write_comparison(runs, place / "comparison.html").read_text(),
        "crowd": page_html("likert", questions_for("imdb"), items, "0123", text),
        "Mechanical Turk": next(csv.reader([mturk_csv("likert", items, "0").partition("\n")[2]]))[3],
    }


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shape]:
    made = pages_of(tmp_path_factory.mktemp("harmless"), HARMLESS)
    return {name: Shape(page) for name, page in made.items()}


@pytest.mark.parametrize("text", IN_PAGES)
def test_no_text_adds_an_element_an_attribute_or_a_link_to_a_page(
    tmp_path: Path, text: str, harmless: dict[str, Shape]
) -> None:
    for name, page in pages_of(tmp_path, text).items():
        shape = Shape(page)
        assert shape.elements <= harmless[name].elements | {("br", ())}, name
        assert shape.links <= harmless[name].links, name
        assert "49" not in page or "{{" not in text or "7 * 7" in page, name


def test_a_long_text_makes_no_huge_page(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "long", HARMLESS)
    row = {"sample_id": "1", "prompt_text": "p" * 10**6, "generated_text": "x" * 10**6, "reward": 1.0}
    folder.write_predictions(2, "val", [row] * 4)
    assert write_report(folder).stat().st_size < 20 * 10**6


def test_the_head_of_a_model_card_is_what_it_was(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "one", "a\n---\nlicense: mit\n")
    folder.model.mkdir()
    head = write_card(folder, folder.model, has_curves=False).split("---\n", 2)[1]
    assert not re.search(r"^license", head, re.MULTILINE)


def shown(*printed: Any) -> str:
    """Return the bytes for a terminal, without the colours that rich writes."""
    screen = Screen(file=io.StringIO(), force_terminal=True, color_system=None, width=120)
    for part in printed:
        screen.print(part)
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def of_console(text: str) -> str:
    screen = Screen(file=io.StringIO(), force_terminal=True, color_system=None, width=120)
    console = Console(screen)
    console.start(text, 1)
    console.note(text)
    console.evaluation_done("val", 0, {f"m/{text}": 1.0})
    return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def of_watch(text: str) -> str:
    turns = [{"observation": text, "answer": text}] * 2
    row = {"sample_id": text, f"environment/{text}": 1.0, "comment": text, "end": text, "turns": turns}
    return shown(episode_view({**row, "reward": 0.0, "prompt_text": text}))


def of_table(text: str) -> str:
    table = Table(text, title=text)
    table.add_row(text)
    return shown(table, text, RichText(text))


def of_chat(text: str) -> str:
    class Reader:
        def read(self, _: object) -> tuple[list[int], int]:
            return [1], 0

    class Speaker:
        def answer(self, _: object, say: Callable[[str], None]) -> Answer:
            say(text)
            return Answer(text, None)

    written: list[str] = []
    converse(Reader(), Speaker(), iter(["hello"]), written.append)  # type: ignore[arg-type]
    return "".join(written)


def of_plan(text: str) -> str:
    return shown(_prompt(text, PromptAsRead(text, (1,), ((text, text),))))


@pytest.mark.parametrize("text", ON_TERMINALS)
@pytest.mark.parametrize("show", [of_console, of_watch, of_table, of_chat, of_plan])
def test_no_text_commands_a_terminal_or_is_markup(show: Callable[[str], str], text: str) -> None:
    out = show(text)
    assert not COMMANDS.search(out), out
    assert COMMANDS.sub("", text) in out.replace("�", "")


@pytest.mark.parametrize("text", ON_TERMINALS[:-2])
@pytest.mark.parametrize("is_json", [True, False])
def test_what_generate_prints_commands_no_terminal(
    text: str, is_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = Turn((1,), (2,), text, (0.0,), (0,))
    rollout = Rollout(0, 0, Prompt("p", text), (turn,), FinishReason.STOP)
    (generate._print_json if is_json else generate._print_readable)({"prompt": text}, rollout, 0)
    out = capsys.readouterr().out
    assert not COMMANDS.search(out)
    assert not is_json or json.loads(out)["prediction"] == text


def test_an_error_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise InputError("rows.jsonl: \x1b]52;c;ZXZpbA==\x07")

    assert cli.ended(["train"], fail, has_own_process=False) == 2
    assert "rows.jsonl: �]52" in capsys.readouterr().err


def test_every_console_is_a_screen() -> None:
    """Rich's own lets commands and markup through."""
    files = [path for path in Path("services").rglob("*.py") if path.name != "screens.py"]
    opened = re.compile(r"\bTerminal\(|^ +from rich.console import Console$", re.MULTILINE)
    assert not [path for path in files if opened.search(path.read_text())]


FORMULAS = ("=cmd|' /C calc'!A0", "+1", "-1+1", "@SUM(A1)", "\t=1", "'=1")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula_and_every_name_comes_back(tmp_path: Path, text: str) -> None:
    items = [Item("a1", text, (text,), (text,))]
    key, page = tmp_path / "key.csv", tmp_path / "answers.csv"
    key.write_text(key_csv("likert", items, "0"))
    page.write_text("page,item,rater,fluency\n0,a1,ann,4\n")
    (rating,) = read_answers([page], [key])
    assert rating.algorithm == text  # type: ignore[union-attr]
    write_tables({"means": [{"algorithm": text, "difference": -0.5}]}, "{}", tmp_path)
    tables = [key.read_text(), (tmp_path / "means.csv").read_text(), mturk_csv("likert", items, "0")]
    cells = [cell for table in tables for row in csv.reader(io.StringIO(table)) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t")) and cell != "-0.5"]
    (row,) = csv.DictReader(io.StringIO(tables[-1]))
    assert html.unescape(row["machine_completion"]) == text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("model")))


LOOP = "{% for i in range(99999) %}"
TEMPLATES = (
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{% include '/etc/passwd' %}", "no loader"),
    ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    (f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}", "0.5 s were not enough"),
    ("{% macro a(x) %}{{ a(x) }}{% endmacro %}{{ a(1) }}", "recursion"),
    ("{{ 'x' * 2000 }}", "writes 2,000 characters"),
    ("{{ 'x' * 10**13 }}", "refuses"),
)


@pytest.mark.parametrize(("template", "why"), TEMPLATES)
def test_a_template_reaches_nothing_and_ends(
    template: str, why: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "LONGEST_S", 0.5)
    monkeypatch.setattr(rendering, "MOST_CHARACTERS", 1000)
    renderer = Rendering(tokenizer, ChatForm(template=template))
    with pytest.raises(InputError, match=why):
        renderer.text([{"role": "user", "content": "hi"}], ask=True)
    again = Rendering(tokenizer, ChatForm(template="{{ messages[0].content }}"))
    assert again.text([{"role": "user", "content": "hi"}], ask=True) == "hi"


@pytest.mark.parametrize("text", ["{{ ''.__class__.__mro__ }}", "{% raw %}", "{{ messages }}"])
def test_a_message_is_no_template(text: str, tokenizer: Any) -> None:
    form = ChatForm(template="{% for m in messages %}{{ m.content }}{% endfor %}")
    assert Rendering(tokenizer, form).text([{"role": "user", "content": text}], ask=True) == text
