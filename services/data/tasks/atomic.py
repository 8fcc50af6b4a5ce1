"""Say what goes before an everyday event or follows from it (ATOMIC 2020, Hwang et al. 2021; ATOMIC-10X)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError, there_are
from contracts.rollout import Prompt
from contracts.settings import Strings
from reward_servers.text.person_names import names_for, with_names
from services.data.tasks.base import SPLITS, Split
from services.data.tasks.files import from_files, kept_rows, split_files
from services.data.tasks.response_task import EMPTY, Answer, Answered, ResponseTask
from services.data.tasks.rows import read_tabbed, text_at

COLUMNS = ("head", "relation", "tail")
# Words for each relation, between its event and its tail.
PHRASES = {
    "HinderedBy": "This is hindered if",
    "xNeed": "Before that, PersonX needed",
    "xWant": "After that, PersonX wants",
    "xIntent": "PersonX did this because PersonX wanted",
    "xReact": "After that, PersonX feels",
    "xAttr": "PersonX is seen as",
    "xEffect": "As a result, PersonX",
}
SPLIT_NAMES: dict[str, Split] = {"train": "train", "val": "validation", "dev": "validation", "test": "test"}


class Atomic(ResponseTask):
    """Task over rows of `head`, `relation` and `tail`. ATOMIC-10X's `p_valid_model` becomes a score.

    Files have the formats of every task, or ATOMIC 2020's: `train.tsv`, `dev.tsv` and `test.tsv` without a
    header. A file with a column `split` (ATOMIC-10X) serves the splits in this column. All tails of one event
    and relation belong to one prompt.
    """

    raw_text: ClassVar[bool] = True
    task_name: ClassVar[str] = "atomic"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    default_metrics: ClassVar[tuple[str, ...]] = ("distinct_n", "length", "meteor")
    source: ClassVar[str] = "ATOMIC 2020 or ATOMIC-10X of the Allen Institute for AI"

    path: str = ""
    relations: Strings = tuple(PHRASES)  # the seven of ATOMIC-10X; []: all
    substitute_names: bool = False  # write first names for PersonX in prompts and responses
    name_seed: int = Field(default=0, ge=0)  # chooses the names, also those in the meta data

    def answered(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Answered]:
        head, relation, tail = (text_at(fields, column, where).strip() for column in COLUMNS)
        names = names_for(head, self.name_seed)
        meta = {
            "head": head,
            "relation": relation,
            "names": names,
            "named_head": with_names(head, names),
            "named_relation": with_names(PHRASES.get(relation, relation), names),
        }
        if self.substitute_names:
            head, tail = with_names(head, names), with_names(tail, names)
        left_out = EMPTY if not head else ""
        if self.relations and relation not in self.relations:
            left_out = "of another relation"
        prompt = Prompt("", f"<head> {head} </head> <relation> {relation} </relation> [GEN] ", meta=meta)
        return [Answered(prompt, (Answer(tail, scores=_scores(fields, where)),), left_out)]

    def puts_together(self, split: Split) -> bool:
        return True

    def rows(self, split: Split) -> Any:
        if self.data_files is None:
            return super().rows(split)
        files = self.files_by_split()
        if "train" not in files and split not in files:
            raise InputError(f"task.data_files: there is no train split; {there_are(files, 'splits')}")
        path = Path(files.get(split) or files["train"])
        where = f"task.data_files={path}"
        if path.suffix == ".tsv":
            expected = "head, relation and tail with tabs between them"
            triples = read_tabbed(path, COLUMNS, expected, may_have_header=True)
            return [triples[row] for row in kept_rows(len(triples), split, files, where)]
        # Read the whole file, for any split.
        rows = from_files(dict.fromkeys(SPLITS, str(path)), split, self.columns)
        if "split" not in rows.column_names:
            return rows.select(kept_rows(len(rows), split, files, where))
        names = [row["split"] for row in rows]
        wanted = [row for row, name in enumerate(names) if SPLIT_NAMES.get(name) == split]
        if not wanted:
            raise InputError(
                f"{where}: no row belongs to {split}; column 'split' has {sorted(set(names))!r:.200}"
            )
        return rows.select(wanted)

    def first_prompts(self, split: Split) -> Sequence[Prompt]:
        if self.data_files is None:
            return []
        file = self.files_by_split().get(split)
        if file is None or Path(file).suffix == ".tsv":
            return []  # reading it later is as quick
        return super().first_prompts(split)

    def files_by_split(self) -> dict[str, str]:
        assert self.data_files is not None
        folder = Path(self.data_files) if isinstance(self.data_files, str) else None
        if folder is None or not (folder / "train.tsv").is_file():
            return split_files(self.data_files)
        named = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
        return {split: str(folder / name) for split, name in named.items() if (folder / name).is_file()}


def _scores(fields: Mapping[str, Any], where: str) -> dict[str, float]:
    score = fields.get("p_valid_model")
    if score in (None, ""):
        return {}
    try:
        return {"p_valid_model": float(score)}  # CSV files give the number as text
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: expected a number in column 'p_valid_model', got {score!r:.200}"
        ) from None
