"""One prompt, one answer: plain text generation, which needs no environment."""

from pydantic import model_validator

from contracts.environments import Environment, Observation, Step
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings

# Options of other environments, and their counterparts for prompts with one answer.
INSTEAD = {
    "reply_end": "rollout.stop",
    "num_parallel": "rollout.max_concurrent",
    "start_timeout_s": "rollout.start_timeout_s",
    "step_timeout_s": "rollout.stall_timeout_s",
    "max_attempts": "rollout.max_restarts",
    "max_failures": "reward_servers.max_failures",
    "memory": "rollout.max_prompt_tokens",
}
HAVE_A_USE = ("target_return", "template")  # the algorithm uses the first, the prompt the second


class SingleTurn(EnvironmentSettings):
    """Settings of plain generation; only `template` has an effect; other options of the base are refused."""

    max_turns: int = 1

    @model_validator(mode="after")
    def _nothing_to_set(self) -> "SingleTurn":
        for name, field in type(self).model_fields.items():
            if (setting := getattr(self, name)) == field.default or name in HAVE_A_USE:
                continue  # a configuration that is read back names defaults
            instead = f"{INSTEAD[name]}, or " if name in INSTEAD else ""
            raise ValueError(
                f"{name}={setting!r} does nothing if each prompt has one answer; expected {instead}an "
                "environment of several turns: environment=NAME"
            )
        return self

    def make(self) -> Environment:
        return _OneAnswer()


class _OneAnswer:
    """Plain generation as an environment, as a yardstick for the others."""

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation(prompt.text)

    def step(self, text: str) -> Step:
        return Step(Observation(""), terminated=True)

    def close(self) -> None:
        pass
