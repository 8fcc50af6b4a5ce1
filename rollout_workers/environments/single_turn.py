"""One prompt, one answer: plain text generation, which needs no environment at all."""

from contracts.environments import Environment, Observation, Step
from contracts.rollout import Prompt
from rollout_workers.environments.base import EnvironmentSettings


class SingleTurn(EnvironmentSettings):
    max_turns: int = 1

    def make(self) -> Environment:
        return _OneAnswer()


class _OneAnswer:
    """The same in the form of an environment: what the others are held against."""

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        return Observation(prompt.text)

    def step(self, text: str) -> Step:
        return Step(Observation(""), terminated=True)

    def close(self) -> None:
        pass
