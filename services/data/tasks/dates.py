"""Write a sentence with a date, such as 2024-05-17, about an event in the prompt."""

from itertools import product
from typing import ClassVar

from pydantic import Field

from contracts.rollout import Prompt
from contracts.settings import Settings
from services.data.tasks.base import Split
from services.data.tasks.synthetic import deal

OPENINGS = (
    "When exactly? The records show that {event} on",
    "Write the date on which {event}:",
    "The log says that {event} on",
    "As far as we know, {event} on",
    "Everyone remembers that {event} on",
    "The report states that {event} on",
    "It is certain that {event} on",
    "Please note the day when {event}:",
)
SUBJECTS = (
    "the bridge",
    "the library",
    "the station",
    "the museum",
    "the harbour",
    "the school",
    "the observatory",
    "the old mill",
    "the town hall",
    "the theatre",
    "the lighthouse",
    "the market hall",
    "the tunnel",
    "the workshop",
)
EVENTS = ("opened", "closed", "repaired", "painted", "inspected", "sold")


class Dates(Settings):
    raw_text: ClassVar[bool] = True
    default_reward: ClassVar[str] = "dates"
    default_metrics: ClassVar[tuple[str, ...]] = ("dates", "length")

    num_prompts: int = Field(default=256, ge=1)  # prompts to train on
    num_eval_prompts: int = Field(default=64, ge=1)  # prompts for validation, and as many for the test
    seed: int = Field(default=0, ge=0)  # chooses the prompts; the run's seed does not change them

    def prompts(self, split: Split) -> list[Prompt]:
        texts = [
            opening.format(event=f"{subject} was {event}")
            for opening, subject, event in product(OPENINGS, SUBJECTS, EVENTS)
        ]
        return deal(
            "dates", texts, split, num_train=self.num_prompts, num_eval=self.num_eval_prompts, seed=self.seed
        )
