"""Questions about each task's texts: two axes from 1 to 5, and the better of two texts.

The axes follow RL4LMs' templates (Ramamurthy et al. 2023). Whetstone adds axes for translation (adequacy and
fluency, as in evaluations of machine translation), for questions on stories and for users' tasks. All wording
is Whetstone's, in `questions.yaml`.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from contracts.errors import InputError, did_you_mean
from services.data.tasks import TASKS


@dataclass(frozen=True, slots=True)
class Axis:
    """Scale from 1 to 5; its name is the column of the answers.

    Example: `Axis("fluency", "How well is it written?", "not language", "flawless")`
    """

    name: str
    question: str
    lowest: str
    highest: str


@dataclass(frozen=True, slots=True)
class Questions:
    """A page's words: names for prompt and text, and the questions."""

    prompt: str
    text: str
    axes: tuple[Axis, Axis]
    better: str
    examples: tuple[tuple[str, str, str], ...]  # prompt, one model's text, another model's text


def _read() -> dict[str, Questions]:
    """Read `questions.yaml`: the questions of each built-in task."""
    by_task: dict[str, Questions] = {}
    for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")):
        tasks = entry.pop("tasks") or [task for task in TASKS if task not in by_task]
        axes, examples = ([tuple(row) for row in entry.pop(key)] for key in ("axes", "examples"))
        first, second = (Axis(*row) for row in axes)
        by_task |= dict.fromkeys(tasks, Questions(**entry, axes=(first, second), examples=tuple(examples)))
    return by_task


QUESTIONS = _read()


def questions_for(task: str) -> Questions:
    """Return the questions about a task's texts.

    >>> [axis.name for axis in questions_for("commongen").axes]
    ['fluency', 'commonsense']

    Raises:
        InputError: there is no such task.
    """
    if task not in QUESTIONS:
        raise InputError(
            f"--task {task}: no such task{did_you_mean(task, QUESTIONS)}\n"
            "For a task of your own give --task prompts, which asks for fluency and quality."
        )
    return QUESTIONS[task]
