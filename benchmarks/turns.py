"""Generated tokens per second of 16 parallel games, and of as many single-turn generations.

The worker, the model and the number of tokens are the same; each game is TextWorld in its own process. In a
second measurement one game takes half a second for each step, to show the loss of the other fifteen.
"""

import time
from collections.abc import Sequence
from itertools import count
from time import perf_counter

from benchmarks.models import gpt2_tiny
from benchmarks.outcome import in_turns, publish, ratio
from contracts.environments import Environment, Observation, Step
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from rollout_workers.environments.textworld import TextWorld
from rollout_workers.settings import RolloutSettings
from services.data.tasks.textworld import TextWorld as Games

GAMES, TURNS, TOKENS, ROUNDS, SLEEP_S = 16, 8, 32, 5, 0.5
SAMPLING = Sampling(max_tokens=TOKENS, min_tokens=TOKENS)  # both sides generate the same number


class Sleepy(TextWorld):
    """A game that is slow if its prompt says so; it ignores the model's text, so no game ends early."""

    def make(self) -> Environment:
        return _Sleepy(super().make())


class _Sleepy:
    def __init__(self, game: Environment) -> None:
        self._game, self._sleep_s = game, 0.0

    def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._sleep_s = float(prompt.meta.get("sleep_s", 0.0))
        return self._game.reset(prompt, seed)

    def step(self, text: str) -> Step:
        time.sleep(self._sleep_s)
        return self._game.step("look")  # changes nothing, and costs as much as any command

    def close(self) -> None:
        self._game.close()


def main() -> None:
    import ray

    from rollout_workers.environment_actors import start_environments
    from rollout_workers.worker import RolloutWorker

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    model = str(gpt2_tiny())
    games = Games(challenge="coin_collector", level=5, num_train=4, num_validation=1, num_test=1)
    prompts = [games.prompts("train")[i % 4] for i in range(GAMES)]
    settings = RolloutSettings(max_concurrent=GAMES, max_tokens=TOKENS)
    environment = Sleepy(num_parallel=GAMES, max_turns=TURNS, memory=0, reply_end="")
    worker = RolloutWorker(model, model, None, "vllm", settings, None, None, environment, start_environments)
    worker.ready()
    plain = RolloutWorker(model, model, None, "vllm", settings)
    plain.ready()
    numbers = count()

    def lease(prompt: Prompt, tokens: tuple[int, ...]) -> Lease:
        number = next(numbers)
        return Lease(number, prompt, tokens, number, number, SAMPLING)

    def finish(by: RolloutWorker, leases: Sequence[Lease]) -> list[Rollout]:
        by.submit(leases)
        rollouts: list[Rollout] = []
        while len(rollouts) < len(leases):
            rollouts += by.poll(1.0).rollouts
        return rollouts

    def played() -> float:
        started = perf_counter()
        rollouts = finish(worker, [lease(prompt, (1,)) for prompt in prompts])
        return sum(rollout.num_generated for rollout in rollouts) / (perf_counter() - started)

    def single() -> float:
        leases = [lease(prompts[0], contexts[i % len(contexts)]) for i in range(GAMES * TURNS)]
        started = perf_counter()
        rollouts = finish(plain, leases)
        return sum(rollout.num_generated for rollout in rollouts) / (perf_counter() - started)

    def beside_a_sleeper() -> float:
        """Measure the fifteen other games until the last of them is done."""
        sleepy = Prompt("sleepy", "", meta={**prompts[0].meta, "sleep_s": SLEEP_S})
        leases = [lease(prompt, (1,)) for prompt in [sleepy, *prompts[1:]]]
        started = perf_counter()
        worker.submit(leases)
        rollouts, took = [], 0.0
        while len(rollouts) < GAMES:
            rollouts += worker.poll(1.0).rollouts
            others = [rollout for rollout in rollouts if rollout.lease_id != leases[0].id]
            if len(others) == GAMES - 1 and not took:
                took = perf_counter() - started
        return sum(rollout.num_generated for rollout in others) / took

    contexts = [rollout.context(TURNS - 1) for rollout in finish(worker, [lease(p, (1,)) for p in prompts])]
    sides = {"single turns": single, "16 games": played, "15 games beside a sleeper": beside_a_sleeper}
    speeds = in_turns(sides, ROUNDS, warm_up=1)
    medians = {f"{name}, tokens/s": sorted(values)[ROUNDS // 2] for name, values in speeds.items()}
    publish(
        "turns",
        f"turns: {GAMES} games of {TURNS} turns of {TOKENS} tokens",
        {
            **medians,
            "games / single turns (at least 0.7)": ratio(speeds["16 games"], speeds["single turns"]),
            "beside a sleeper / without": ratio(speeds["15 games beside a sleeper"], speeds["16 games"]),
        },
        speeds,
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
