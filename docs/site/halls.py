"""The picture of services/ in docs/architecture.md, drawn from the layers of pyproject.toml.

python docs/site/halls.py     writes it into the page; a test checks that the page has it.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- halls -->\n", "<!-- /halls -->\n"


def floors(container: str) -> list[list[str]]:
    """Return the rooms of a package, from the top floor down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [contract["layers"] for contract in contracts if contract.get("containers") == [container]]
    return [floor.split(" | ") for floor in (layers[0] if layers else [])]


def picture() -> str:
    """Return a row for each hall of services/, with its rooms: a room imports those right of it."""
    halls = [hall for (hall,) in floors("services") if (ROOT / "services" / hall).is_dir()]
    rooms = {hall: " > ".join(", ".join(floor) for floor in floors(f"services.{hall}")) for hall in halls}
    return "```\n" + "".join(f"{hall:13}{rooms[hall]}".rstrip() + "\n" for hall in halls) + "```\n"


def drawn(page: str) -> str:
    """Return the page with the picture between its two marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + picture() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
