"""Translate a language pair of a WMT year, by default English to German of 2016."""

from typing import Any, ClassVar

from pydantic import Field

from contracts.errors import InputError
from services.data.tasks.base import Split
from services.data.tasks.files import from_hub
from services.data.tasks.translation import Translation


class Wmt16(Translation):
    task_name: ClassVar[str] = "wmt16"

    wmt_id: str = Field(default="wmt16", pattern=r"^wmt\d\d$")  # the year, if path is ""
    path: str = ""  # "": wmt/<wmt_id>

    def rows(self, split: Split) -> Any:
        if self.data_files is not None:
            return super().rows(split)
        pair = (self.source_language, self.target_language)
        pairs = ["-".join(pair), "-".join(reversed(pair))]  # the hub has a pair in one order
        pairs.sort(key=lambda name: not name.endswith("-en"))  # try the order with English last first
        problem: InputError | None = None
        for subset in [self.subset] if self.subset else pairs:
            try:
                return from_hub(
                    self.path or f"wmt/{self.wmt_id}", split, (), subset=subset, revision=self.revision
                )
            except InputError as error:
                problem = problem or error
        assert problem is not None
        raise problem
