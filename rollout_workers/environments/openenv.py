"""Environments behind an OpenEnv server, by its protocol: actions and observations as texts or JSON."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings, seed_of
from rollout_workers.openenv_session import Answer, Session, action_schema
from rollout_workers.tools.env_servers import LOOK_S, SOONER, Address
from rollout_workers.tools.tool_calls import why_not_sent

METADATA = "metadata"  # a field of newer servers' observations for people, which may hold the solution


class OpenEnv(EnvironmentSettings):
    """Settings of an environment on an OpenEnv server; each process has a session.

    Example: `task=episodes environment=openenv environment.url=http://127.0.0.1:8000`
    """

    rewards_itself: ClassVar[bool] = True

    url: Address  # address of the server, such as http://127.0.0.1:8000
    # Field of an action for the answer's text; None: the only text that the server requires, otherwise an
    # answer is the whole action, in JSON
    action_field: str | None = None
    action: dict[str, Any] = Field(default_factory=dict)  # more fields of each action
    observation_field: str | None = (
        None  # part of an observation that the model reads; None: all except metadata, in JSON
    )
    options: dict[str, Any] = Field(default_factory=dict)  # arguments of each reset, beside the seed
    invalid_reward: float = 0.0  # reward of an answer that is no action

    def check(self) -> None:
        """Check the server, and the field of its actions."""
        self.make().close()

    def make(self) -> Environment:
        schema = action_schema(self.url, min(LOOK_S, self.start_timeout_s))
        known = schema.get("properties", {})
        if self.action_field is not None and known and self.action_field not in known:
            raise InputError(
                f"environment.action_field={self.action_field}: an action at {self.url} has no such field; "
                f"expected one of {', '.join(name for name in known if name != METADATA)}"
            )
        return _Play(self, self.action_field or only_text(schema))


def only_text(schema: Mapping[str, Any]) -> str | None:
    """Return the field of an action that takes a text, if it is the only required field.

    >>> only_text({"properties": {"message": {"type": "string"}, "metadata": {}}, "required": ["message"]})
    'message'
    >>> only_text({"properties": {"row": {"type": "integer"}}, "required": ["row"]})
    """
    known, required = schema.get("properties", {}), schema.get("required", [])
    if len(required) == 1 and known.get(required[0], {}).get("type") == "string":
        return str(required[0])
    return None


class _Play:
    """Successive episodes in one session."""

    def __init__(self, settings: OpenEnv, field: str | None) -> None:
        self._settings, self._field = settings, field
        self._session = Session(
            settings.url, SOONER * settings.start_timeout_s, SOONER * settings.step_timeout_s
        )

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._num_steps = self._num_invalid = 0
        options = prompt.meta.get("options") or {}
        answer = self._session.reset({**self._settings.options, **options, "seed": seed_of(prompt)})
        self._now = Observation(self._text(answer))
        return Observation(self._now.text, f"{prompt.text}\n" if prompt.text else "")

    def step(self, text: str) -> Step:
        self._num_steps += 1
        action = self._action(text)
        answer = Answer(is_invalid=True) if action is None else self._session.step(action)
        if answer.is_invalid:
            self._num_invalid += 1
            return Step(self._now, self._settings.invalid_reward, info=self._info())
        self._now = Observation(self._text(answer))
        return Step(self._now, answer.reward, terminated=answer.is_done, info=self._info())

    def close(self) -> None:
        self._session.close()

    def _action(self, text: str) -> dict[str, Any] | None:
        if self._field is not None:
            return {**self._settings.action, self._field: text.strip()}
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(read, dict) or why_not_sent(read) is not None:
            return None
        return {**self._settings.action, **read}

    def _info(self) -> dict[str, float]:
        return {"steps": float(self._num_steps), "invalid": self._num_invalid / self._num_steps}

    def _text(self, answer: Answer) -> str:
        name, seen = self._settings.observation_field, answer.observation
        shown = {key: value for key, value in seen.items() if key != METADATA}
        if name is None:
            return f"{json.dumps(shown, ensure_ascii=False)}\n"
        if name not in seen:
            raise InputError(
                f"environment.observation_field={name}: the observation has no such field; expected one of "
                f"{', '.join(shown)}"
            )
        value = seen[name]
        return f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n"
