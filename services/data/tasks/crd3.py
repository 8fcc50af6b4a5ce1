"""Say what the next speaker says at a table of role players (CRD3, Rameshkumar and Bailey 2020)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.whole_texts import json_of
from services.data.tasks.base import Split
from services.data.tasks.data_set import DataSetTask

LISTS = {"train": "train_files", "validation": "val_files", "test": "test_files"}  # lists of episodes
NAMES, UTTERANCES = "names", "utterances"


class Crd3(DataSetTask):
    """Task whose `data_files` is a copy of the data set's repository, or files with a column `turns`."""

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "crd3"
    one_each: ClassVar[bool] = False
    default_reward: ClassVar[str] = "meteor"
    default_metrics: ClassVar[tuple[str, ...]] = ("meteor", "rouge", "bleu", "sacre_bleu", "diversity")

    path: str = "microsoft/crd3"
    max_context_size: int = Field(default=5, ge=1)  # turns shown before the reference

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        turns = [_turn(turn, where) for turn in _turns(fields, where)]
        prompts = []
        for number, (name, words) in enumerate(turns):
            if number < 2:  # a prompt shows at least two turns
                continue
            heard = turns[max(0, number - self.max_context_size) : number]
            text = "".join(f"{speaker}: {spoken}\n" for speaker, spoken in heard) + f"{name}: "
            prompts.append(Prompt(str(number), text, references=(words,)))
        return prompts

    def rows(self, split: Split) -> Any:
        folder = self._repository()
        return super().rows(split) if folder is None else episodes(folder, split)

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        folder = self._repository()
        return super().first_prompts(split) if folder is None else self.prompts(split)

    def _repository(self) -> Path | None:
        if isinstance(self.data_files, str) and (Path(self.data_files) / "data" / "cleaned data").is_dir():
            return Path(self.data_files) / "data"
        return None


def episodes(data: Path, split: Split) -> list[dict[str, Any]]:
    """Read the episodes of a split from the folder `data` of the data set's repository.

    Raises:
        InputError: the list of episodes, or an episode, is missing or can't be read.
    """
    names = data / "aligned data" / LISTS[split]
    rows = []
    try:
        for name in names.read_text(encoding="utf-8").split():
            path = data / "cleaned data" / f"{name}.json"
            rows.append(json_of(path.read_text(encoding="utf-8"), f"task.data_files: {path}"))
    except (OSError, ValueError) as error:
        raise InputError(f"task.data_files: an episode of {names} can't be read: {error}") from None
    if not rows:
        raise InputError(f"task.data_files: {names} names no episode")
    return rows


def _turns(fields: Mapping[str, Any], where: str) -> list[Any]:
    turns = fields.get("turns", fields.get("TURNS"))
    if not isinstance(turns, list):
        there = ", ".join(sorted(fields)) or "none"
        raise InputError(f"{where}: expected a list of turns in column 'turns'; the columns are: {there}")
    return turns


def _turn(turn: Any, where: str) -> tuple[str, str]:
    """Return a turn's speaker and text; the first speaker if several speak at once."""
    if isinstance(turn, Mapping):
        small = {str(key).lower(): value for key, value in turn.items()}
        names, words = small.get(NAMES), small.get(UTTERANCES)
        if names and isinstance(names, list) and isinstance(words, list):
            return str(names[0]), " ".join(map(str, words))
    raise InputError(f"{where}: expected turns {{names: […], utterances: […]}}, got {turn!r:.200}")
