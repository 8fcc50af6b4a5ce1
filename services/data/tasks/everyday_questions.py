"""Answer a question about an everyday thing, animal, job, food or place: "What does a camel eat?"."""

from functools import cache
from pathlib import Path
from typing import ClassVar

import yaml
from pydantic import Field

from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import Split
from services.data.tasks.synthetic import deal


class EverydayQuestions(Settings):
    """Task whose splits share no subject: a model that trains on camels is tested on penguins."""

    default_reward: ClassVar[str] = "short_answer"
    default_metrics: ClassVar[tuple[str, ...]] = ("length",)

    num_subjects: int = Field(default=96, ge=1)  # subjects to train on
    num_eval_subjects: int = Field(default=16, ge=1)  # subjects for validation, and as many for the test
    seed: int = Field(default=0, ge=0)  # chooses the subjects; the run's seed does not change them

    def prompts(self, split: Split) -> list[Prompt]:
        subjects = list(dict.fromkeys(subject for words in questions().values() for subject in words))
        dealt = deal(
            "everyday_questions",
            subjects,
            split,
            num_train=self.num_subjects,
            num_eval=self.num_eval_subjects,
            seed=self.seed,
        )
        return [
            Prompt(
                f"{prompt.id}/{kind}", question.format(prompt.text), meta={"key_words": words[prompt.text]}
            )
            for prompt in dealt
            for kind, (question, words) in enumerate(questions().items())
            if prompt.text in words
        ]


@cache
def questions() -> dict[str, dict[str, list[str]]]:
    """Read the questions: words of a correct answer, by question and subject.

    >>> questions()["What does {} eat?"]["a cow"]
    ['grass', 'hay', 'plant']
    """
    read: dict[str, dict[str, list[str]]] = yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text("utf-8")
    )
    return read
