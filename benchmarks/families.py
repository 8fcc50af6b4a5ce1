"""One PPO iteration (rollouts, scores, four epochs, weights) of a T5-like model beside a GPT of its size."""

import random
from time import perf_counter

from benchmarks.models import engine_of, gpt2_tiny, t5_small_as_gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.rollout import Lease, Prompt, Sampling
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.engines.engine_arguments import prepare_environment
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker

NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS, ROUNDS = 64, 16, 32, 9
SAMPLING = Sampling(NEW_TOKENS, min_tokens=NEW_TOKENS)


class Side:
    """The worker and the learner of one model, in this process; each call is one iteration."""

    def __init__(self, model: str) -> None:
        settings = RolloutSettings(max_concurrent=NUM_PROMPTS, kv_cache_gib=0.5)
        self._worker = RolloutWorker(model, model, None, engine_of(model), settings)
        self._worker.ready()  # before the learner, because one process can't load two models at once
        self._learner = Learner(
            ModelSettings(path=model),
            PPO(num_epochs=4, minibatch_size=NUM_PROMPTS),
            LearnerSettings(),
            seed=0,
            iterations=10**6,
            sampling=SAMPLING,
        )
        self.num_parameters = sum(p.numel() for p in self._learner.pair.lm.parameters())
        self._draw = random.Random(0)

    def __call__(self) -> float:
        leases = [
            Lease(i, Prompt("", ""), self._prompt(), i, self._draw.randrange(2**30), SAMPLING)
            for i in range(NUM_PROMPTS)
        ]
        started = perf_counter()
        self._worker.submit(leases)
        rollouts = []
        while len(rollouts) < NUM_PROMPTS:
            rollouts += self._worker.poll(1.0).rollouts
        self._learner.update(rollouts)
        self._worker.load_weights(*self._learner.publish("float32"))
        return perf_counter() - started

    def _prompt(self) -> tuple[int, ...]:
        return tuple(self._draw.randrange(1, 1000) for _ in range(PROMPT_TOKENS))


def main() -> None:
    prepare_environment()
    sides = {"GPT": Side(str(gpt2_tiny())), "T5": Side(str(t5_small_as_gpt2_tiny()))}
    times = in_turns(sides, ROUNDS, warm_up=2)
    medians = {f"{name}, s an iteration": sorted(values)[ROUNDS // 2] for name, values in times.items()}
    sizes = {f"{name}, parameters": side.num_parameters for name, side in sides.items()}
    share = {"T5 / GPT (at most 1.6)": ratio(times["T5"], times["GPT"])}
    title = f"{NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens, {NEW_TOKENS} new, 4 epochs"
    publish("families", title, {**sizes, **medians, **share}, times)


if __name__ == "__main__":
    main()
