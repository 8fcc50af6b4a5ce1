"""The index of docs/results/: each page with its commits, tables and pictures.

`python -m benchmarks.results_index` writes docs/results/README.md. A test fails if the index is out of date.
"""

import re
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs/results"
INDEX = "README.md"
COMMIT = re.compile(
    r"(?<![\w/.#-])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7}(?:[0-9a-f]{33})?(?!\w|/|\.\w)"
)
DASHES = re.compile(r"^\|?(?: ?:?-{2,}:? ?\|)+(?: ?:?-{2,}:?)?$", re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")
HEAD = """# Results

`python -m benchmarks.results_index` lists every page of measurements with its commits.
[Published tables](../reproduce.md) have run only with stand-ins, so their numbers are no results.

page | tables | commits
--- | --- | ---
"""


def index(folder: Path = RESULTS) -> str:
    """Return the index as Markdown."""
    pages = sorted(path for path in folder.glob("*.md") if path.name != INDEX)
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages}
    rows = [f"[{title(text)}]({name}) | {num_tables(text)} | {commits(text)}" for name, text in texts.items()]
    pictures = [
        f"## {title(text)}\n\n[![{title(text)}]({picture})]({name})"
        for name, text in texts.items()
        for picture in PICTURE.findall(text)
    ]
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(pictures) + "\n"


def title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def num_tables(text: str) -> int:
    """Count tables by their lines of dashes.

    >>> num_tables("| a | b |\\n|---|--:|\\n| 1 | 2 |\\n\\na | b\\n--- | ---\\n1 | 2\\n")
    2
    """
    return len(DASHES.findall(text))


def commits(text: str) -> str:
    """Return a page's commits in order.

    >>> commits("Commit 8f27281-dirty, then 2a8b6f5; 1234567 texts, docs/8f27281.md")
    '8f27281, 2a8b6f5'
    >>> commits("none")
    'not stated'
    """
    short = (commit[:7] for commit in COMMIT.findall(text.replace("-dirty", "")))
    return ", ".join(dict.fromkeys(short)) or "not stated"


def main() -> None:
    (RESULTS / INDEX).write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
