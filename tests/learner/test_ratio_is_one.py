"""Sampler and learner agree: the ratio is one on the first pass, for every algorithm, engine, family.

Real engines generate with the weights that a real learner publishes, mask model included, through several
updates; the learner's log-probability of every token is the one that the worker drew it with.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from contracts.components import find
from contracts.rollout import MaskRule, Rollout, Sampling, Turn
from learner.algorithms.base import Algorithm
from learner.algorithms.grpo import GRPO
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from rollout_workers.engines import ENGINES
from rollout_workers.engines.base import Engine, Request
from tests.learner.tiny import make_learner, rollout
from tests.rollout_workers.generation import SETTINGS, Name, finish, prompts_of_many_lengths

RULE = MaskRule(top_p=0.8, min_tokens_to_keep=2)
ONE_PASS: dict[str, Any] = {"num_epochs": 1, "minibatch_size": None}
ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO(**ONE_PASS, learning_rate=3e-3),
    "nlpo": NLPO(**ONE_PASS, learning_rate=3e-3, top_p=0.8, min_tokens_to_keep=2, target_update_iterations=2),
    "grpo": GRPO(**ONE_PASS, learning_rate=3e-3),
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "unwarped": {},
    "warped": {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_tokens": 4},
    "penalised": {"repetition_penalty": 1.3},
    "endless": {"ignore_eos": True},
    "all": {"repetition_penalty": 1.3, "temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_tokens": 4},
}
vllm = pytest.mark.vllm
PAIRS = [
    ("transformers", "llama"),
    ("transformers", "gpt2"),
    ("transformers", "t5"),
    ("transformers", "mt5"),
    ("transformers", "bart"),
    pytest.param("vllm", "llama", marks=vllm),
    pytest.param("vllm", "gpt2", marks=vllm),
]
CAUSAL = [("transformers", "llama"), ("transformers", "gpt2")]
T5 = ("transformers", "t5", True)
runs = count(1)


@pytest.fixture(scope="module")
def engines(folders: Callable[[Name], Path]) -> Callable[..., Engine]:
    """Each engine starts once, with a mask model where the algorithm has one."""
    made: dict[tuple[str, Name, MaskRule | None], Engine] = {}

    def engine(kind: str, model: Name, rule: MaskRule | None) -> Engine:
        key = (kind, model, rule)
        if key not in made:
            folder = str(folders(model))
            made[key] = find("engine", kind, ENGINES)(folder, folder, None, SETTINGS, rule)
        return made[key]

    return engine


def push(learner: Learner, engine: Engine) -> None:
    manifest, arrays = learner.publish("float32")
    engine.load_weights(manifest, arrays)
    mask_arrays = learner.publish_mask("float32")
    if mask_arrays is not None and engine.mask_version != manifest.mask_version:
        engine.load_mask(manifest, mask_arrays)


def generate(engine: Engine, requests: list[Request]) -> list[Rollout]:
    """Rewards differ from text to text, so that updates move the weights."""
    generations = finish(engine, requests)
    return [
        rollout(
            request.id,
            request.tokens,
            generations[request.id].tokens,
            0.1 * (sum(generations[request.id].tokens) % 11),
            logprobs=generations[request.id].behavior_logprobs,
            version=engine.weight_version,
        )
        for request in requests
    ]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("algorithm", ["ppo", "nlpo"])
@pytest.mark.parametrize(("kind", "model"), PAIRS)
def test_the_ratio_is_one_on_the_first_pass(
    folders: Callable[[Name], Path],
    engines: Callable[..., Engine],
    kind: str,
    model: Name,
    algorithm: str,
    sampling: str,
) -> None:
    masked = algorithm == "nlpo"
    chosen: dict[str, Any] = {"max_tokens": 12, "masked": masked, **SAMPLINGS[sampling]}
    learner = make_learner(folders(model), ALGORITHMS[algorithm], sampling=Sampling(**chosen))
    # Engines keep what they computed by (version, mask version): two runs on one must not share them.
    learner.version = learner.mask_version = 100 * next(runs)
    engine = engines(kind, model, RULE if masked else None)
    ages = []
    for _ in range(3):
        push(learner, engine)
        metrics = learner.update(generate(engine, prompts_of_many_lengths(24, **chosen)))
        assert metrics["mismatch/max_ratio"] < 1 + 1e-4  # |log μ - log π_old|, of every token
        assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert metrics["approx_kl"] == pytest.approx(0, abs=1e-8)
        assert metrics["staleness/mean"] == 0
        assert metrics["gradient_norm/policy"] > 0.01  # the next round has other weights
        if masked:
            ages.append(metrics["mask/age"])
            assert metrics["mask/forced_tokens"] == 0
            assert metrics["mask/share_of_tokens"] > 0.05
    assert ages == ([0, 1, 0] if masked else [])


NUM_GAMES, NUM_TURNS = 12, 3


def play(engine: Engine, *, fresh: bool, **sampling: Any) -> list[Rollout]:
    """Games of up to three turns, answered by the engine; between them the world says one to four words.

    Fresh: each context forgets all but the game's first words and the last answer; else it grows.
    """
    draw = random.Random(7)

    def says() -> tuple[int, ...]:
        return tuple(draw.choices(range(3, 23), k=draw.randint(1, 4)))

    begun = [says() for _ in range(NUM_GAMES)]
    turns: list[list[Turn]] = [[] for _ in range(NUM_GAMES)]
    pending = list(begun)
    for number in range(NUM_TURNS):
        games = {game * NUM_TURNS + number: game for game in range(NUM_GAMES) if draw.random() > 0.2 * number}
        requests = [
            Request(id=id, tokens=pending[game], sampling=Sampling(**sampling), seed=id)
            for id, game in games.items()
        ]
        for id, answer in finish(engine, requests).items():
            game = games[id]
            seen = pending[game] if fresh else pending[game][sum(map(_length, turns[game])) :]
            versions = (engine.weight_version,) * len(answer.tokens)
            reward = 0.1 * (sum(answer.tokens) % 11)
            turns[game].append(
                Turn(seen, answer.tokens, "", answer.behavior_logprobs, versions, reward, fresh)
            )
            before = (*begun[game], *answer.tokens) if fresh else (*pending[game], *answer.tokens)
            pending[game] = (*before, *says())
    return [
        replace(
            rollout(game, (1,), (1,)),
            turns=tuple(played),
            truncated_context=pending[game] if game % 2 else (),
        )
        for game, played in enumerate(turns)
    ]


def _length(turn: Turn) -> int:
    return len(turn.observation) + len(turn.tokens)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("kind", "model", "fresh"), [(*pair, fresh) for pair, fresh in product(CAUSAL, (False, True))] + [T5]
)
def test_the_ratio_is_one_in_games_of_several_turns(
    folders: Callable[[Name], Path],
    engines: Callable[..., Engine],
    kind: str,
    model: Name,
    fresh: bool,
    sampling: str,
) -> None:
    chosen: dict[str, Any] = {"max_tokens": 6, **SAMPLINGS[sampling]}
    learner = make_learner(folders(model), ALGORITHMS["ppo"], sampling=Sampling(**chosen), token_budget=60)
    learner.version = learner.mask_version = 100 * next(runs)
    engine = engines(kind, model, None)
    for _ in range(2):
        push(learner, engine)
        games = play(engine, fresh=fresh, **chosen)
        assert sum(len(game.turns) for game in games) > NUM_GAMES
        assert (len(games[0].segments) == len(games[0].turns)) is (fresh or len(games[0].turns) == 1)
        metrics = learner.update(games)
        assert metrics["mismatch/max_ratio"] < 1 + 1e-5  # |log μ - log π_old|, of every token
        assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert metrics["approx_kl"] == pytest.approx(0, abs=1e-8)
        assert metrics["gradient_norm/policy"] > 0.01  # the next round has other weights


def test_scoring_another_distribution_would_be_noticed(
    folders: Callable[[Name], Path], engines: Callable[..., Engine]
) -> None:
    """The same rollouts, scored unwarped: the test above can fail."""
    chosen: dict[str, Any] = {"max_tokens": 12, **SAMPLINGS["warped"]}
    learner = make_learner(folders("t5"), ALGORITHMS["grpo"], sampling=Sampling(**chosen), behavior="ignore")
    learner.version = 100 * next(runs)
    engine = engines("transformers", "t5", None)
    push(learner, engine)
    metrics = learner.update(generate(engine, prompts_of_many_lengths(24, **chosen)))
    assert metrics["mismatch/max_ratio"] > 1.1
