"""An environment of the package `verifiers`, in a separate Python: its tasks, tools and rewards."""

import json
import subprocess
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.environments.program import ProgramSettings, check_program

SCRIPT = Path(__file__).parents[1] / "programs/verifiers_episode.py"
OLDEST = (0, 4)
VERSION = "import importlib.metadata as found; print(found.version('verifiers'))"
LOOK_S = 60.0


class Verifiers(ProgramSettings):
    """Settings of an environment of verifiers; the prompt's seed is the number of its task.

    Example: `environment=verifiers environment.python=.venv-verifiers/bin/python environment.id=gsm8k-v1`
    """

    python: str  # a Python with verifiers 0.4 and the environment's package
    id: str = Field(min_length=1)  # taskset's name, as in vf-eval: an installed package, or a module
    # Options as in vf-eval after --env, such as {taskset: {num_tasks: 100}, agent: {max_turns: 4}}
    options: dict[str, Any] = Field(default_factory=dict)
    # Fork episodes from a process that has loaded the environment. False: each episode loads it, which is
    # needed with threads or a GPU, because forks do not survive them
    fork: bool = True

    @field_validator("options")
    @classmethod
    def _names_one_taskset(cls, value: dict[str, Any]) -> dict[str, Any]:
        if isinstance(value.get("taskset"), dict) and "id" in value["taskset"]:
            raise ValueError("taskset.id is environment.id; leave it out")
        return value

    def check(self) -> None:
        super().check()
        check_program("environment.python", self.python)
        version = version_in(self.python)
        if not version or tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            raise InputError(
                f"environment.python={self.python} has verifiers {version or '–'}; expected 0.4 or newer: "
                "python -m venv .venv-verifiers && .venv-verifiers/bin/pip install verifiers uv"
            )

    def check_prompt(self, prompt: Prompt) -> None:
        if prompt.meta.get("seed") is None:
            raise InputError(
                "environment=verifiers plays the task whose number is the prompt's seed, but prompt "
                f"{prompt.id} has none: expected task=episodes"
            )

    def words(self, prompt: str) -> list[str]:
        """Return the command, which is the same for all prompts."""
        taskset = {**self.options.get("taskset", {}), "id": self.id}
        return [self.python, str(SCRIPT), json.dumps({**self.options, "taskset": taskset})]

    def warm_words(self) -> list[str] | None:
        return self.words("") if self.fork else None


def version_in(python: str) -> str:
    """Return this Python's version of verifiers; "" for none."""
    try:
        return subprocess.run(
            [python, "-I", "-c", VERSION], capture_output=True, text=True, timeout=LOOK_S
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
