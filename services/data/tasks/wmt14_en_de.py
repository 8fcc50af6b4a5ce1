"""Translate English to German, from the training data of WMT 2014."""

from typing import ClassVar

from services.data.tasks.translation import Translation


class Wmt14EnDe(Translation):
    task_name: ClassVar[str] = "wmt14_en_de"

    path: str = "wmt/wmt14"
    subset: str | None = "de-en"
