"""Environments behind a server of the Open Reward Standard: its tasks, prompts, tools and rewards."""

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from contracts.conversations.thoughts import behind_thought
from contracts.environments import Environment, Observation, Step
from contracts.errors import InputError, did_you_mean
from contracts.rollout import Prompt
from contracts.secrets.secret_values import remember_secret
from rollout_workers.environments.base import seed_of
from rollout_workers.tools.calling import Calling, CallSettings, Result
from rollout_workers.tools.env_servers import LOOK_S, SOONER, Address, looked_up
from rollout_workers.tools.open_reward_answers import Opening
from rollout_workers.tools.open_reward_session import KEY, Session
from rollout_workers.tools.tool_calls import Call, of_text
from rollout_workers.tools.tool_functions import ToolError
from rollout_workers.tools.tool_texts import described

KIND = "the Open Reward Standard"


class OpenReward(CallSettings):
    """Settings of an Open Reward Standard environment; the prompt's seed is the number of its task.

    Example: `task=episodes environment=open_reward environment.url=http://127.0.0.1:8080`
    """

    rewards_itself: ClassVar[bool] = True
    can_leave: ClassVar[bool] = True

    url: Address  # address of the server, such as http://127.0.0.1:8080
    id: str | None = None  # name among the server's environments; None: the first
    split: str = "train"  # the played split of the server's tasks
    max_calls: int = Field(default=64, ge=1)  # calls allowed in an episode; further calls get an error
    max_result_tokens: int = Field(default=1024, ge=1)  # the rest of a result is cut
    key_variable: str | None = None  # environment variable with the server's key

    def check(self) -> None:
        """Check the server, its environment and its split."""
        super().check()
        listed = self._look(f"/{self.name()}/splits")
        splits = [split["name"] for split in listed if isinstance(split, dict) and "name" in split]
        if self.split not in splits:
            hint = did_you_mean(self.split, splits)
            raise InputError(f"environment.split={self.split}: the server has no such split{hint}")

    def check_prompt(self, prompt: Prompt) -> None:
        if prompt.meta.get("seed") is None:
            raise InputError(
                "environment=open_reward plays the task whose number is the prompt's seed, but prompt "
                f"{prompt.id} has none: expected task=episodes"
            )
        count = _num_tasks(self)
        if count is not None and seed_of(prompt) >= count:
            raise InputError(
                f"no task {seed_of(prompt)}: environment.split={self.split} has {count}, from 0 on. "
                "Expected fewer prompts: task.first_seed, task.num_prompts and twice task.num_eval_prompts "
                "add up to at most that"
            )

    def make(self) -> Environment:
        return _Play(self, Session(self.url, self.name(), self.headers()))

    def name(self) -> str:
        """Return the environment's name in the server's addresses.

        Raises:
            InputError: the server has no such environment.
        """
        names = self._look("/list_environments")
        if not isinstance(names, list) or not names:
            raise InputError(
                f"environment.url={self.url}: {self.url}/list_environments gave {names!r:.200}; expected a "
                f"server of {KIND}"
            )
        known = {str(name).lower(): str(name) for name in names}
        chosen = str(names[0]) if self.id is None else self.id
        if chosen.lower() not in known:
            hint = did_you_mean(chosen, list(known))
            raise InputError(f"environment.id={chosen}: the server has no such environment{hint}")
        return known[chosen.lower()]

    def headers(self) -> dict[str, str]:
        """Return the headers of every request.

        Raises:
            InputError: the key's variable is not set.
        """
        if self.key_variable is None:
            return {}
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise InputError(f"environment.key_variable={self.key_variable}: this variable is not set")
        remember_secret(key)
        return {KEY: key}

    def _look(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return looked_up(self.url, path, KIND, min(LOOK_S, self.start_timeout_s), self.headers(), body)


@lru_cache(maxsize=8)
def _num_tasks(settings: OpenReward) -> int | None:
    """Return the number of tasks; None if the server can't count them."""
    try:
        count = settings._look(f"/{settings.name()}/num_tasks", {"split": settings.split})["num_tasks"]
    except (InputError, LookupError, TypeError):
        return None
    return count if isinstance(count, int) else None


class _Play(Calling):
    """Successive episodes; each is a session."""

    def __init__(self, settings: OpenReward, session: Session) -> None:
        super().__init__(settings)
        self._settings, self._session = settings, session

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self.begin()
        task = {"split": self._settings.split, "index": seed_of(prompt)}
        limit_s = SOONER * self._settings.start_timeout_s
        self._opening: Opening = self._session.begin(task, limit_s, "start_timeout_s")
        tools = self._opening.tools
        shown = described(tools) if tools and self._settings.template != "chat" else ""
        header = "".join(f"{part}\n\n" for part in (prompt.text, shown) if part)
        question = {"role": "user", "content": self._opening.text}
        return Observation(f"{self._opening.text}\n", header, messages=(question,), tools=tools)

    def step(self, text: str) -> Step:
        self._deadline = time.monotonic() + SOONER * self._settings.step_timeout_s
        answer = of_text(text)
        if answer.calls:
            names = [str(tool["function"]["name"]) for tool in self._opening.tools]
            step = self.answered(answer.calls, names)
        else:
            step = Step(Observation(""), self._last_reward(answer.content), terminated=True, info=self.info())
        if step.terminated:
            self._session.end()
        return step

    def leave(self) -> None:
        """Let the server end the task that the model has left unfinished."""
        self._session.end()

    def close(self) -> None:
        self._session.close()

    def made(self, call: Call) -> Result:
        left_s = max(0.0, self._deadline - time.monotonic())
        return self._session.call(call.name, call.arguments, left_s, "step_timeout_s")

    def _last_reward(self, content: str) -> float:
        """Return the reward of an answer without a call, which some environments grade by a tool."""
        last = self._opening.last_call
        if last is None:
            return 0.0
        answer = (behind_thought(content) or "").strip()
        try:
            return self.made(Call(last.name, {} if last.argument is None else {last.argument: answer})).reward
        except ToolError:
            return self.failed()
