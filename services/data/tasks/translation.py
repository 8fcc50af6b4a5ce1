"""Base of the translation tasks: the prompt holds a source sentence, the reference its translation."""

from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import Side, Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.rows import check_columns, text_at


class Translation(DataSetTask):
    """Task whose rows have a column `translation`, as on the hub, or one column for each language."""

    raw_text: ClassVar[bool] = True
    truncation_side: ClassVar[Side] = "right"
    default_reward: ClassVar[str] = "ter"
    default_metrics: ClassVar[tuple[str, ...]] = (
        "ter",
        "meteor",
        "rouge",
        "bleu",
        "sacre_bleu",
        "chrf",
        "diversity",
    )

    source_language: str = "en"
    target_language: str = "de"
    prompt_prefix: str = ""
    prompt_suffix: str = ""

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        pair = fields.get("translation", fields)
        if not isinstance(pair, Mapping):
            raise InputError(
                f"{where}: expected a text for each language in column 'translation', got {pair!r:.200}"
            )
        check_columns(pair, (self.source_language, self.target_language), where)
        text = self.prompt_prefix + text_at(pair, self.source_language, where) + self.prompt_suffix
        return [Prompt("", text, references=(text_at(pair, self.target_language, where),))]
