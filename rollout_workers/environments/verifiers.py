"""An environment of the package `verifiers`, in a Python of its own: its tasks, tools and rewards."""

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

    python: str  # that has verifiers 0.4 and the environment's package
    id: str = Field(min_length=1)  # of a taskset, as vf-eval takes it: an installed package, or a module
    # As vf-eval takes them behind --env, such as {taskset: {num_tasks: 100}, agent: {max_turns: 4}}
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _names_one_taskset(cls, value: dict[str, Any]) -> dict[str, Any]:
        if isinstance(value.get("taskset"), dict) and "id" in value["taskset"]:
            raise ValueError("taskset.id is environment.id; leave it out")
        return value

    def check(self) -> None:
        super().check()
        check_program("environment.python", self.python)
        said = version_in(self.python)
        if not said or tuple(int(part) for part in said.split(".")[:2] if part.isdigit()) < OLDEST:
            raise InputError(
                f"environment.python={self.python} has verifiers {said or '–'}; expected 0.4 or newer: "
                "python -m venv .venv-verifiers && .venv-verifiers/bin/pip install verifiers uv"
            )

    def check_prompt(self, prompt: Prompt) -> None:
        if prompt.meta.get("seed") is None:
            raise InputError(
                "environment=verifiers plays the task whose number is the prompt's seed, and prompt "
                f"{prompt.id} has none: expected task=episodes"
            )

    def words(self, prompt: str) -> list[str]:
        """Return the command, which is the same for all prompts."""
        taskset = {**self.options.get("taskset", {}), "id": self.id}
        return [self.python, str(SCRIPT), json.dumps({**self.options, "taskset": taskset})]


def version_in(python: str) -> str:
    """Return the version of verifiers that this Python has; "" for none."""
    try:
        return subprocess.run(
            [python, "-I", "-c", VERSION], capture_output=True, text=True, timeout=LOOK_S
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
