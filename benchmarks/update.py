"""(b) Trained tokens per second of the learner and of a bare PyTorch loop: same model, batch and epochs."""

import random
from time import perf_counter

import torch

from benchmarks.models import gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.settings import LearnerSettings, ModelSettings

ROLLOUTS, PROMPT_TOKENS, NEW_TOKENS, EPOCHS, ROUNDS = 64, 16, 48, 4, 9
TRAINED = ROLLOUTS * NEW_TOKENS * EPOCHS


def main() -> None:
    path = str(gpt2_tiny())
    learner = Learner(
        ModelSettings(path=path),
        PPO(num_epochs=EPOCHS, minibatch_size=ROLLOUTS, learning_rate=1e-4),
        LearnerSettings(),
        seed=0,
        iterations=1000,
    )
    rollouts = [rollout_of(i, i, PROMPT_TOKENS, NEW_TOKENS) for i in range(ROLLOUTS)]
    bare = BareLoop(path, rollouts)

    def ours() -> float:
        return TRAINED / learner.update(rollouts)["time/update_s"]

    speeds = in_turns({"bare PyTorch": bare.tokens_per_s, "learner": ours}, ROUNDS, warm_up=2)
    medians = {f"{name}, tokens/s": sorted(values)[ROUNDS // 2] for name, values in speeds.items()}
    share = ratio(speeds["learner"], speeds["bare PyTorch"])
    publish(
        "update",
        f"update: {ROLLOUTS} rollouts of {PROMPT_TOKENS} + {NEW_TOKENS} tokens, {EPOCHS} epochs",
        {**medians, "learner / bare PyTorch (at least 0.9)": share},
        speeds,
    )


def rollout_of(index: int, prompt: int, num_prompt: int, num_new: int) -> Rollout:
    """Return a rollout of random tokens; `prompt` numbers its prompt."""
    draw = random.Random(prompt)
    question = tuple(draw.randrange(1, 1000) for _ in range(num_prompt))
    draw = random.Random(f"answer {index}")
    answer = tuple(draw.randrange(1, 1000) for _ in range(num_new))
    turn = Turn(question, answer, "", (-6.9,) * num_new, (0,) * num_new, reward=draw.random())
    return Rollout(index, prompt, Prompt(str(prompt), ""), (turn,), FinishReason.LENGTH)


class BareLoop:
    """PPO as in a plain script: whole logits, one batch, AdamW, a clipped norm, and no service."""

    def __init__(self, path: str, rollouts: list[Rollout]) -> None:
        from transformers import AutoModelForCausalLM

        self.lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.head = torch.nn.Linear(self.lm.config.hidden_size, 1)
        self.parameters = [*self.lm.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, weight_decay=1e-6)
        self.tokens = torch.tensor([rollout.tokens for rollout in rollouts])
        self.targets = self.tokens[:, PROMPT_TOKENS:]
        with torch.no_grad():
            self.old, self.values = self._forward()
        rewards = torch.tensor([rollout.total_reward for rollout in rollouts])
        self.returns = rewards[:, None].expand_as(self.values)
        advantages = self.returns - self.values
        self.advantages = (advantages - advantages.mean()) / advantages.std()

    def _forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.lm(input_ids=self.tokens, use_cache=False, output_hidden_states=True)
        logprobs = out.logits[:, PROMPT_TOKENS - 1 : -1].log_softmax(-1)
        chosen = logprobs.gather(-1, self.targets[..., None]).squeeze(-1)
        return chosen, self.head(out.hidden_states[-1][:, PROMPT_TOKENS - 1 : -1]).squeeze(-1)

    def tokens_per_s(self) -> float:
        started = perf_counter()
        for _ in range(EPOCHS):
            logprobs, values = self._forward()
            ratio = (logprobs - self.old).exp()
            clipped = ratio.clamp(0.8, 1.2)
            policy = -torch.minimum(ratio * self.advantages, clipped * self.advantages).mean()
            loss = policy + 0.5 * (self.returns - values).square().mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
            self.optimizer.step()
        return TRAINED / (perf_counter() - started)


if __name__ == "__main__":
    main()
