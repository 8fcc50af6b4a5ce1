"""Translate English talks to German (IWSLT 2017, Cettolo et al. 2017)."""

from typing import ClassVar

from services.data.tasks.translation import Translation


class Iwslt2017EnDe(Translation):
    task_name: ClassVar[str] = "iwslt2017_en_de"

    path: str = "IWSLT/iwslt2017"
    subset: str | None = "iwslt2017-de-en"
    prompt_prefix: str = "translate English to German: "
