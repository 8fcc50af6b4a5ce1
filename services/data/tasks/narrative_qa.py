"""Answer a question about the summary of a story (NarrativeQA, Kočiský et al. 2018), as UnifiedQA asks it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from services.data.tasks.base import Side, Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.file_rows import FileRows
from services.data.tasks.files import split_files
from services.data.tasks.rows import check_columns, read_tabbed

NESTED = ("question.text", "document.summary.text", "answers")  # the hub's nested fields, without the books
OF_TSV = (("prompt", "answer"), "a prompt, a tab and an answer")
BETWEEN = " \\n "  # UnifiedQA writes a backslash and an n between question and summary


class NarrativeQa(DataSetTask):
    """Task whose rows with the same prompt become one prompt with all answers, in lower case.

    It reads the hub's data, or UnifiedQA's files: lines `prompt <tab> answer` without a header.
    """

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "narrative_qa"
    truncation_side: ClassVar[Side] = "right"  # the question comes first
    default_reward: ClassVar[str] = "rouge_l_max"
    default_metrics: ClassVar[tuple[str, ...]] = ("rouge_l_max", "meteor", "rouge", "bleu", "diversity")

    path: str = "deepmind/narrativeqa"

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        if "prompt" in fields and "answer" in fields:
            text, answers = fields["prompt"], [fields["answer"]]
        else:
            question, summary, answer = (_at(fields, column, where) for column in NESTED)
            text = f"{question}{BETWEEN}{summary}"
            listed = answer if isinstance(answer, list) else [answer]
            answers = [one.get("text") if isinstance(one, Mapping) else one for one in listed]
        if not isinstance(text, str) or not answers or not all(isinstance(one, str) for one in answers):
            raise InputError(
                f"{where}: expected a question and answers, all of them texts, got {answers!r:.200}"
            )
        return [Prompt("", text.lower(), references=tuple(one.lower().strip() for one in answers))]

    def rows(self, split: Split) -> Any:
        if (tsv := self._tsv(split)) is not None:
            return read_tabbed(tsv, *OF_TSV)
        rows = super().rows(split)
        if "document" not in rows.column_names or isinstance(rows, FileRows):
            return rows
        flat = rows.flatten()
        check_columns(flat.column_names, NESTED, f"task={self.task_name}")
        return flat.select_columns(list(NESTED))

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        if (tsv := self._tsv(split)) is None:
            return super().first_prompts(split)
        return list(self._made(split, read_tabbed(tsv, *OF_TSV)))

    def puts_together(self, split: Split) -> bool:
        return True

    def _tsv(self, split: Split) -> Path | None:
        """Return UnifiedQA's file of this split, or None if `data_files` names no such files."""
        if self.data_files is None:
            return None
        if isinstance(self.data_files, str) and (Path(self.data_files) / "train.tsv").is_file():
            folder = Path(self.data_files)
            name = "dev" if split == "validation" and (folder / "dev.tsv").is_file() else split
            return folder / f"{name}.tsv"
        files = split_files(self.data_files)
        if not any(Path(file).suffix == ".tsv" for file in files.values()):
            return None
        if split not in files:
            raise InputError(
                f"task.data_files: expected a file for each split, because no prompt may be in two splits; "
                f"there is none for {split}: task.data_files={{train: …, {split}: …}}"
            )
        return Path(files[split])


def _at(fields: Mapping[str, Any], column: str, where: str) -> Any:
    """Return the value at `a.b`: a column with this name, or a key in a mapping."""
    if column in fields:
        return fields[column]
    value: Any = fields
    for key in column.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise InputError(
                f"{where}: there is no column '{column}'; {there_are(sorted(fields), 'columns')}"
            )
        value = value[key]
    return value
