"""The repository says what it is: papers, tree, pins and versions agree with the code."""

import ast
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from contracts.components import find
from contracts.errors import InputError
from contracts.scores import Sample
from docs.site import halls
from learner.algorithms import ALGORITHMS
from services.cli import COMMANDS
from services.commands.listing import options_of
from services.config import compose

ROOT = Path(__file__).parents[1]
PACKAGES = ("contracts", "rollout_workers", "reward_servers", "learner", "services", "whetstone")
README = (ROOT / "README.md").read_text()
LONGEST_FILE = 400  # lines
LONGEST_README = 150  # lines
MOST_WORDS = 26_000  # of all pages in docs/, without the bars and numbers of tables
MOST_HALLS = 10  # of services/, which a newcomer reads in one breath
VAGUE_NAMES = {"found", "said", "told", "asked", "own", "each", "given"}
MOST_VAGUE_NAMES = 3
MOST_TERMS = 40  # of the glossary
A_NAME = re.compile(r"\.?[\w.-]+(/|\.(py|md|toml|j2))|Makefile|LICENSE")
# Written so that no pattern is found in this file.
ADDRESSES = re.compile(
    r"https?://[^\s)>\"'`]*/simp[l]e\b|//files\.[a-z]+\.or[g]|p[y]pi\.|^\s*-(i|-index-ur[l]|-extra-index-ur[l])\b"
    r"|index-ur[l]\s*=",
    re.MULTILINE,
)


def files() -> list[Path]:
    """Files that git has or would take, in a clone; the test is pointless elsewhere."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def text_of(path: Path) -> str:
    """ "" for a picture."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of that language; of none: commands, drawings and the tree."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    return [body for name, body in fences if name == language]


def tree(text: str) -> Iterator[Path]:
    """Every path of a drawn tree; what is indented lies in the folder above.

    Example: `"services/   what a person starts\\n  cli.py   the command"` gives services and services/cli.py.
    """
    folders: list[Path] = []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        for word in line.split():
            if not A_NAME.fullmatch(word):
                break  # the phrase begins
            path = Path(*folders[depth - 1 : depth], word)
            yield path
            if word.endswith("/"):
                folders[depth:] = [path]


def the_tree() -> list[Path]:
    (drawn,) = (block for block in blocks("") if block.startswith("contracts/"))
    return list(tree(drawn))


def test_a_tree_is_read_by_its_indents() -> None:
    drawn = (
        "a/  what\n  b.py c.py  two files\n  d/   more\n    e.py  deep. And a phrase.py\nMakefile f/  last\n"
    )
    assert list(map(str, tree(drawn))) == ["a", "a/b.py", "a/c.py", "a/d", "a/d/e.py", "Makefile", "f"]


def test_what_the_readmes_tree_names_is_there() -> None:
    assert [str(path) for path in the_tree() if not (ROOT / path).exists()] == []


# Folders of equals: one file for each algorithm, grader, task and command.
EQUALS = {
    "learner/algorithms",
    "reward_servers/graders",
    "services/commands",
    "services/data/tasks",
}
MOST_MODULES = 20


def test_no_folder_holds_more_modules_than_a_reader_can_overlook() -> None:
    held = Counter(
        str(path.parent.relative_to(ROOT))
        for path in files()
        if path.suffix == ".py" and path.name != "__init__.py" and path.relative_to(ROOT).parts[0] in PACKAGES
    )
    assert {folder: n for folder, n in held.items() if n > MOST_MODULES and folder not in EQUALS} == {}


def test_the_readmes_tree_names_every_package() -> None:
    """Every package, and every folder beside them; of files it need not name any."""
    modules = [path.relative_to(ROOT) for path in files() if path.suffix == ".py"]
    packages = {path.parent for path in modules if path.parts[0] in PACKAGES}
    beside = {Path(path.relative_to(ROOT).parts[0]) for path in files() if path.parent != ROOT}
    assert sorted(map(str, (packages | beside) - set(the_tree()))) == []


def test_the_picture_of_the_halls_is_that_of_the_layers() -> None:
    page = halls.PAGE.read_text()
    assert page == halls.drawn(page), "run python docs/site/halls.py"


def test_a_newcomer_reads_the_halls_of_services_in_one_breath() -> None:
    assert len(list(ROOT.glob("services/*/__init__.py"))) <= MOST_HALLS


def test_the_readme_fits_a_few_screens() -> None:
    assert len(README.splitlines()) <= LONGEST_README


def test_the_documents_are_short() -> None:
    """Leave out docs/results/, which holds measurements."""
    pages = {path.name: path.read_text().split() for path in ROOT.glob("docs/*.md")}
    words = {name: sum(bool(re.search("[A-Za-z]", word)) for word in page) for name, page in pages.items()}
    assert sum(words.values()) <= MOST_WORDS, words


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    begins = re.compile(r'"""(Of|What|Who|Whoever|That|Whether)\b')
    papers = [path for path in files() if path.suffix == ".py"]
    assert [str(path) for path in papers if begins.search(path.read_text())] == []


def vague_names(source: str) -> list[str]:
    """Return the bindings whose names tell nothing of the thing: assignments, loops, parameters."""
    nodes = list(ast.walk(ast.parse(source)))
    bound = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [
        name
        for name in bound + [node.arg for node in nodes if isinstance(node, ast.arg)]
        if name in VAGUE_NAMES
    ]


def test_variables_are_named_for_what_they_hold() -> None:
    counts = {str(path): len(vague_names(path.read_text())) for path in files() if path.suffix == ".py"}
    assert sum(counts.values()) <= MOST_VAGUE_NAMES, {path: count for path, count in counts.items() if count}
    assert vague_names("found = [each for each in f(own=1)]\ndef f(given): pass") == [
        "found",
        "each",
        "given",
    ]


def test_the_glossary_is_short() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    assert 20 < len(re.findall(r"^- \*\*", page, re.MULTILINE)) <= MOST_TERMS


def test_the_readme_begins_with_the_two_commands_and_shows_a_run() -> None:
    assert re.findall(r"^make (\w+)", blocks("")[0], re.MULTILINE) == ["demo", "test"]
    picture = ROOT / re.findall(r"!\[.*?\]\((.*?)\)", README)[0]
    assert 10_000 < picture.stat().st_size < 300_000


def test_the_readme_shows_every_command() -> None:
    shown = set(re.findall(r"^whetstone ([\w-]+)", "\n".join(blocks("")), re.MULTILINE))
    assert shown == set(COMMANDS)


def test_every_make_target_that_a_paper_names_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    papers = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / ".ci/run"]
    # In code only: "make it" is English.
    named = {
        target
        for paper in papers
        for target in re.findall(r"(?:`|^)make ([a-z]+)", paper.read_text(), re.MULTILINE)
    }
    assert named - targets == set()


def test_the_readmes_training_commands_are_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (reward,) = blocks("python")
    (tmp_path / "my_rewards.py").write_text(reward)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "\n".join(blocks("")).replace("\\\n", " ")
    commands = [line.partition("  #")[0] for line in text.splitlines() if line.startswith("whetstone train ")]
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command)[2:]
        if "-m" in words:
            words = ["seed=0" if word.startswith("seed=") else word for word in words if word != "-m"]
        compose.run_settings(words)


def test_every_override_that_a_page_shows_can_be_read() -> None:
    """Copied into a shell; whether its key and value are known is not looked at."""
    wrong, count = [], 0
    for page in ROOT.glob("docs/*.md"):
        text = page.read_text().replace("\\\n", " ")
        for command in re.findall(r"^whetstone (?:train|plan|evaluate|demo) (.*)", text, re.MULTILINE):
            overrides = [
                word for word in shlex.split(command, comments=True) if "=" in word and "…" not in word
            ]
            count += len(overrides)
            for word in overrides:
                try:
                    compose.parse(word)
                except InputError as error:
                    wrong.append(f"{page.name}: {error}")
    assert wrong == []
    assert count > 200


def test_the_readmes_reward_scores() -> None:
    names: dict[str, type] = {}
    exec(blocks("python")[0], names)
    # 2 different words of 2, of at least 4: 0.5; 1 of 4: 0.25
    assert names["Variety"](words=4).score([Sample("a b"), Sample("a a a a")]) == [0.5, 0.25]


def tables_of_defaults(text: str) -> Iterator[tuple[str, str, str]]:
    """(algorithm, option, default) of each table whose first column is `algorithm.`; – says it has none.

    >>> list(tables_of_defaults("`algorithm.` | ppo, nlpo | meaning\\n--- | --- | ---\\n`gamma` | 0.9\\n"))
    [('ppo', 'gamma', '0.9'), ('nlpo', 'gamma', '0.9')]
    """
    for table in re.findall(r"^`algorithm\.` \|.*\n(?:.*\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in row.split("|")] for row in table.splitlines())
        for option, *defaults in rows:
            for names, default in zip(header[1:-1], defaults, strict=False):
                if default != "–":
                    yield from ((name, option.strip("`"), default) for name in names.split(", "))


def test_the_tables_of_defaults_are_the_classes() -> None:
    """The tables compare algorithms; the site's reference has every option (tests/test_site.py)."""
    written = {
        (name, option): yaml.safe_load(re.sub(r"^(\d)e", r"\1.0e", default))
        for page in ("learner.md", "learning-from-data.md")
        for name, option, default in tables_of_defaults((ROOT / "docs" / page).read_text())
    }
    expected = {
        (name, option): option_row["default"]
        for name, address in ALGORITHMS.items()
        for option, option_row in options_of(find("algorithm", address, {})).items()
    }
    assert {name for name, _ in written} == set(ALGORITHMS)
    assert len(written) > 150
    assert written == {key: expected.get(key, "no such option") for key in written}


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert linked == {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"}


def test_every_test_that_a_paper_names_is_there() -> None:
    papers = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    named = {
        names for paper in papers for names in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", paper.read_text())
    }
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert len(named) > 15 and missing == []


def test_links_between_papers_lead_somewhere() -> None:
    dead = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in files()
        if path.suffix == ".md"
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert dead == []


def test_no_file_is_too_long() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in files()
        if path.suffix in (".py", ".md", ".yaml", ".j2") and "tests" not in path.relative_to(ROOT).parts
        if (lines := len(text_of(path).splitlines())) > LONGEST_FILE
    }
    assert long == {}


@pytest.mark.parametrize("name", ["cpu.txt", "cuda.txt"])
def test_pins_are_names_and_versions_alone(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[\w.!]+", pin)] == []


@pytest.mark.parametrize("target", ["check-pins", "pins", "audit"])
def test_pins_of_other_machines_are_looked_at_without_installing_them(target: str) -> None:
    """Both builds of vLLM have the same folder: the one for GPUs would break a CPU's."""
    planned = subprocess.run(
        [
            "make",
            "--dry-run",
            "--always-make",
            target,
            "EXTRA=cuda",
            "UV=made",
            "VENV=made",
            "--assume-old=made",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert planned.returncode == 0 and "requirements/cuda.txt" in planned.stdout
    assert "pip install" not in planned.stdout


def test_no_file_names_a_package_registry() -> None:
    naming = {
        str(path.relative_to(ROOT)): names for path in files() if (names := ADDRESSES.findall(text_of(path)))
    }
    assert naming == {}


@pytest.mark.parametrize(
    "line",
    [
        "https://example.org/simpl" + "e/torch",
        "https://files.example.or" + "g/a.whl",
        "--index-ur" + "l https://example.org",
        "index-ur" + "l = https://example.org",
    ],
)
def test_an_address_would_be_found(line: str) -> None:
    assert ADDRESSES.search(line)


def test_the_newest_version_of_the_changelog_is_this_one() -> None:
    versions = re.findall(r"^## \[(\d[\w.]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions[0] == project["version"]


def test_ci_runs_the_checks_the_site_and_then_the_tests() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, "not executable"
    assert "set -euo pipefail" in script.read_text()
    assert re.search(r"for target in check docs test;", script.read_text())
