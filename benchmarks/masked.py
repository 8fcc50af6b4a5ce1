"""Rollouts of NLPO and PPO: the same model, prompts and lengths, with and without a mask model."""

import random
from time import perf_counter

from benchmarks.models import gpt2_tiny, t5_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Lease, MaskRule, Prompt, Sampling
from rollout_workers.engines.engine_arguments import prepare_environment
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS, ROUNDS = 64, 16, 64, 7
SETTINGS = RolloutSettings(max_concurrent=NUM_PROMPTS, kv_cache_gib=0.5)
RULE = MaskRule(top_p=0.9)


class Side:
    """One worker; each call plays one batch of prompts and returns seconds per token."""

    def __init__(self, model: str, engine: str, rule: MaskRule | None) -> None:
        self._worker = RolloutWorker(model, model, None, engine, SETTINGS, rule)
        self._worker.ready()
        # The minimum keeps responses from ending early: both sides generate the same number of tokens.
        self._sampling = Sampling(NEW_TOKENS, min_tokens=NEW_TOKENS, masked=rule is not None)
        self._draw = random.Random(0)
        self._next_id = 0

    def __call__(self) -> float:
        leases = []
        for _ in range(NUM_PROMPTS):
            tokens = tuple(self._draw.randrange(1, 1000) for _ in range(PROMPT_TOKENS))
            leases.append(Lease(self._next_id, Prompt("", ""), tokens, 0, self._next_id, self._sampling))
            self._next_id += 1
        started, count, tokens_made = perf_counter(), 0, 0
        self._worker.submit(leases)
        while count < NUM_PROMPTS:
            rollouts = self._worker.poll(1.0).rollouts
            count += len(rollouts)
            tokens_made += sum(rollout.num_generated for rollout in rollouts)
        return (perf_counter() - started) / tokens_made


def main() -> None:
    prepare_environment()
    rows, details = {}, {}
    for name, model, engine in (
        ("GPT, vllm", gpt2_tiny(), "vllm"),
        ("GPT, transformers", gpt2_tiny(), "transformers"),
        ("T5, transformers", t5_tiny(), "transformers"),
    ):
        sides = {"ppo": Side(str(model), engine, None), "nlpo": Side(str(model), engine, RULE)}
        times = in_turns(sides, ROUNDS, warm_up=2)
        rows[f"{name}: nlpo / ppo, seconds a token (at most 2.2)"] = ratio(times["nlpo"], times["ppo"])
        details[name] = times
    publish("masked", f"{NUM_PROMPTS} prompts of {PROMPT_TOKENS}, {NEW_TOKENS} new tokens", rows, details)


if __name__ == "__main__":
    main()
