"""Give the next utterance of an everyday conversation (DailyDialog, Li et al. 2017)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.rows import texts_at

LABELS = {"act": range(1, 5), "emotion": range(7)}  # inform, question, directive, commissive; none, anger, …


class DailyDialog(DataSetTask):
    """Task whose utterances end in a mark, which is plain text and not a special token."""

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "daily_dialog"
    columns: ClassVar[tuple[str, ...]] = ("dialog", "act", "emotion")
    one_each: ClassVar[bool] = False
    default_reward: ClassVar[str] = "meteor"
    default_metrics: ClassVar[tuple[str, ...]] = ("meteor", "rouge", "bleu", "sacre_bleu", "diversity")

    path: str = "li2017dailydialog/daily_dialog"
    revision: str | None = "refs/convert/parquet"  # the hub's copy in Parquet; the main branch is a script
    context_size: int = Field(
        default=5, ge=1
    )  # utterances in the prompt; utterances with fewer before them get no prompt
    eou_token: str = "<EOU>"  # stands after every utterance
    end_references: bool = True  # add the mark, so that a model learns to stop

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        utterances = [text.strip() for text in texts_at(fields, "dialog", where)]
        acts, emotions = (_labels(fields, column, len(utterances), where) for column in ("act", "emotion"))
        mark, prompts = f" {self.eou_token}", []
        for number in range(self.context_size, len(utterances)):
            heard = self.prompt_of(utterances[number - self.context_size : number])
            reference = f" {utterances[number]}" + (mark if self.end_references else "")
            meta = {"intent": acts[number], "emotion": emotions[number]}
            prompts.append(Prompt(str(number), heard, (reference,), meta))
        return prompts

    def prompt_of(self, utterances: Sequence[str]) -> str:
        """Join utterances, each followed by the mark. `whetstone chat` uses this, too."""
        return " ".join(f"{utterance} {self.eou_token}" for utterance in utterances)


def _labels(fields: Mapping[str, Any], column: str, count: int, where: str) -> list[int]:
    labels = fields[column]
    if not isinstance(labels, list) or not all(label in LABELS[column] for label in labels):
        low, high = LABELS[column][0], LABELS[column][-1]
        raise InputError(
            f"{where}: expected a list of numbers from {low} to {high} in column '{column}', "
            f"got {labels!r:.200}"
        )
    if len(labels) != count:
        raise InputError(
            f"{where}: {count} utterances in column 'dialog', but {len(labels)} numbers in column '{column}'"
        )
    return [int(label) for label in labels]
