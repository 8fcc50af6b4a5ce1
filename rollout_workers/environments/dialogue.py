"""A dialogue of several turns with a partner: the model's copy, a frozen model, or a user's class."""

import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from contracts.conversations.chat import SYSTEM_ROLES
from contracts.environments import Environment, Observation, Step
from contracts.rollout import Prompt
from contracts.settings import Strings
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.partners import Partner, check_partner, heard_from, make_partner


class Dialogue(EnvironmentSettings):
    """Settings of dialogues. The prompt begins one; then model and partner take turns, the model first.

    The reward servers give rewards: for the whole dialogue, or with `reward_at=turn` for each answer.

    Example: `environment=dialogue environment.partner=frozen environment.partner_options={model: gpt2}`
    """

    max_turns: int = Field(default=4, ge=1)
    reply_end: str = " <EOU>"  # the separator, unless set
    separator: str = "<EOU>"  # ends an utterance; "": each answer is one utterance
    partner: str = "self"  # self, frozen, or a user's package.module:Class with reply(history, seed)
    partner_options: dict[str, Any] = Field(default_factory=dict)
    end_phrases: Strings = ()  # the partner ends the dialogue by saying one of them, or nothing

    @model_validator(mode="before")
    @classmethod
    def _close_answers_as_the_prompt_does(cls, options: Any) -> Any:
        """Set `reply_end` to the separator, so that it also ends an answer that hit its token limit.

        With its copy, the model speaks both parts of a dialogue. Chat templates have no place for that.
        """
        if not isinstance(options, Mapping):
            return options
        separator = options.get("separator", cls.model_fields["separator"].default)
        options = {"reply_end": f" {separator}" if separator else "", **options}
        with_copy = options.get("partner", cls.model_fields["partner"].default) == "self"
        return (
            {**options, "template": "plain"}
            if with_copy and options.get("template", "auto") == "auto"
            else options
        )

    @model_validator(mode="after")
    def _can_talk(self) -> "Dialogue":
        if self.separator != self.separator.strip():
            raise ValueError(f"separator={self.separator!r}: expected a mark without blanks around it")
        if not all(phrase.strip() for phrase in self.end_phrases):
            raise ValueError(
                f"end_phrases={list(self.end_phrases)}: one is empty, so every dialogue would end"
            )
        if self.partner == "self" and self.memory == 0:
            raise ValueError("memory=0 with partner=self: the copy would hear nothing; expected 1 or more")
        if self.partner == "self" and self.template == "chat":
            raise ValueError(
                "template=chat with partner=self: a chat template has one assistant, but two would speak; "
                "expected template=plain, or another partner"
            )
        check_partner(self.partner, self.partner_options)
        return self

    def laid_out(self, by_template: bool) -> Self:
        """Return settings for a model with or without a chat template, whose marks replace the separator."""
        settings = super().laid_out(by_template)
        is_changed = self.template == "auto" and by_template
        return settings.model_copy(update={"separator": "", "reply_end": ""}) if is_changed else settings

    def make(self) -> Environment:
        by_template = self.template == "chat"
        return _Talk(self, make_partner(self.partner, self.partner_options, self.separator, by_template))


class _Talk:
    """Dialogue as a list of utterances; `overhear` adds those of the model's copy."""

    def __init__(self, settings: Dialogue, partner: Partner | None) -> None:
        self._settings, self._partner = settings, partner

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        separator = self._settings.separator
        utterances = prompt.text.split(separator) if separator else [prompt.text]
        if prompt.messages:
            spoken = [message for message in prompt.messages if message["role"] not in SYSTEM_ROLES]
            utterances = [str(message.get("content") or "") for message in spoken]
        self._history = [utterance.strip() for utterance in utterances if utterance.strip()]
        self._seed = seed
        self._lengths: list[int] = []  # words in each of the model's answers
        self._num_cut = 0
        return Observation(prompt.text, messages=tuple(prompt.messages))

    def step(self, text: str) -> Step:
        answer, rest = self._first_utterance(text)
        self._history.append(answer)
        self._lengths.append(len(answer.split()))
        self._num_cut += bool(rest)
        if self._partner is None:
            return Step(Observation("", by_model=True), info=self._info())
        seed = utterance_seed(self._seed, len(self._lengths))
        reply = heard_from(self._partner, self._settings.partner, self._history, seed)
        heard, _ = self._first_utterance(reply)
        self._history.append(heard)
        mark = f" {self._settings.separator}" if self._settings.separator else ""
        before = (
            "" if self._settings.template == "chat" else " "
        )  # plain texts continue like words in a sentence
        observation = Observation(f"{before}{heard}{mark}" if heard else "")
        return Step(observation, terminated=self._ends(heard), info=self._info())

    def overhear(self, text: str) -> bool:
        """Add the words of the model's copy; return whether they end the dialogue."""
        heard, _ = self._first_utterance(text)
        self._history.append(heard)
        return self._ends(heard)

    def close(self) -> None:
        self._partner = None

    def _first_utterance(self, text: str) -> tuple[str, str]:
        """Split a text into the first utterance and the rest after the separator, which neither includes."""
        separator = self._settings.separator
        utterance, _, rest = text.partition(separator) if separator else (text, "", "")
        return utterance.strip(), rest.strip()

    def _ends(self, heard: str) -> bool:
        return not heard or any(_says(heard, phrase) for phrase in self._settings.end_phrases)

    def _info(self) -> dict[str, float]:
        return {
            "turns": len(self._lengths),
            "reply_words": sum(self._lengths) / len(self._lengths),
            "cut": self._num_cut,
            "empty": self._lengths.count(0),
        }


def _says(utterance: str, phrase: str) -> bool:
    """
    >>> _says("See you later !", "see you"), _says("I know .", "no")
    (True, False)
    """
    return bool(re.search(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)", utterance, re.IGNORECASE))


def utterance_seed(seed: int, number: int) -> int:
    """Return the seed of the partner's utterance `number`, counted from 1.

    >>> utterance_seed(7, 1) == utterance_seed(7, 1) != utterance_seed(7, 2)
    True
    """
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> np.uint64(1))
