"""RL4LMs' 44 configuration files as a table, and the script that writes it from the files themselves.

    python -m tests.services.rl4lms_table FOLDER     FOLDER: scripts/training/task_configs of RL4LMs

The table, `rl4lms_files.jsonl`, has one file a line: its name, and what it says. So imports are tested where
the files are not at hand; where they are, a test compares the two.
"""

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("rl4lms_files.jsonl")
# Beside a checkout, where the real files may lie.
FOLDER = Path(__file__).parents[3] / "shared" / "rl4lms_configs"


def read(folder: Path) -> dict[str, Any]:
    """Return what each file says, by its name without the suffix.

    Example: `read(folder)["common_gen/t5_ppo"]["env"]["n_envs"] == 10`
    """
    files = sorted(folder.glob("*/*.yml"))
    return {str(file.relative_to(folder).with_suffix("")): yaml.safe_load(file.read_text()) for file in files}


@cache
def configurations() -> Mapping[str, Any]:
    """Return the table, in the form of `read`."""
    lines = (json.loads(line) for line in TABLE.read_text().splitlines())
    return {line["file"]: line["says"] for line in lines}


def text_of(name: str) -> str:
    """Return a file of the table as YAML."""
    text: str = yaml.safe_dump(configurations()[name], sort_keys=False)
    return text


def write(folder: Path) -> None:
    lines = (json.dumps({"file": name, "says": says}) for name, says in read(folder).items())
    TABLE.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
