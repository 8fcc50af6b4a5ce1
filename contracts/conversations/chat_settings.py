"""Settings for reading conversations: the chat template, and its inputs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date as Date
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from contracts.errors import InputError
from contracts.settings import Settings

AUTO, NONE, TOKENIZER = "auto", "none", "tokenizer"
GIVEN = ("messages", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize")  # by the run


class ChatSettings(Settings):
    """Settings of conversations, `model.chat`.

    Example: `model.chat.system="Be brief." model.chat.options.enable_thinking=false`
    """

    # auto: the tokenizer's, if it has one and the task's prompts are meant for it; none: plain text;
    # tokenizer: the tokenizer's, for every task; or a file with a template in Jinja
    template: str = AUTO
    system: str | None = None  # system message of conversations that begin without one
    options: dict[str, Any] = Field(default_factory=dict)  # options of the template: {enable_thinking: false}
    # Tokens of earlier turns that a turn reads. recorded: those read and drawn then; template: the
    # conversation as the template writes it now, in a new sequence if it drops or changes something
    history: Literal["recorded", "template"] = "recorded"
    date: str | None = None  # YYYY-MM-DD, for templates that name today; None: today

    @field_validator("options")
    @classmethod
    def _are_the_templates_own(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in GIVEN:
                raise ValueError(f"{name!r} is set by the run itself; expected options of the template")
        return value

    @field_validator("date")
    @classmethod
    def _is_a_date(cls, value: str | None) -> str | None:
        if value is not None:
            Date.fromisoformat(value)
        return value

    @model_validator(mode="after")
    def _has_a_template_to_give_it_to(self) -> "ChatSettings":
        options = [name for name in ("system", "options") if getattr(self, name)]
        if self.template == NONE and options:
            raise ValueError(
                f"template=none with {options[0]}: plain texts have neither; leave out one of them"
            )
        return self

    @property
    def is_explicit(self) -> bool:
        """Return whether the settings require a template, whatever the task."""
        return self.template not in (AUTO, NONE)

    def with_text(self) -> "ChatSettings":
        """Return settings with the template's text in place of its file, for other machines and later."""
        if not self.is_explicit or self.template == TOKENIZER:
            return self
        return self.model_copy(update={"template": self._text()})

    def form(self) -> "ChatForm":
        """Return a renderer's data; read the template's file.

        Raises:
            InputError: the file can't be read.
        """
        text = self._text() if self.is_explicit and self.template != TOKENIZER else None
        day = None if self.date is None else Date.fromisoformat(self.date)
        return ChatForm(text, self.system, self.options, day, self.history == "template")

    def _text(self) -> str:
        return self.template if "{" in self.template else _text_of(Path(self.template))


@dataclass(frozen=True, slots=True)
class ChatForm:
    """A template with its inputs, ready to travel to a worker.

    Example: the tokenizer's own template, and a system message: `ChatForm(system="Be brief.")`
    """

    template: str | None = None  # its text; None: the tokenizer's own
    system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    date: Date | None = None  # None: today
    follows_template: bool = False  # the template writes earlier turns; False: they keep their tokens
    ends: tuple[int, ...] = field(default=(), compare=False)  # at which the model stops: a trait of the model

    def plain(self) -> dict[str, Any]:
        """Return the settings that decide how prompts are read, as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "ends"}


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(
            f"model.chat.template={file} can't be read: {reason}; expected auto, none, tokenizer, or a file "
            f"with a chat template in Jinja"
        ) from None
