"""The task of an environment that needs no data: seeds, and that held-out ones are held out."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import Prompt
from services.config.compose import run_settings
from services.data.tasks.base import SPLITS
from services.data.tasks.episodes import Episodes

COUNTS = st.integers(1, 50)


@given(num_prompts=COUNTS, num_eval_prompts=COUNTS, first_seed=st.integers(0, 10**6))
def test_no_seed_is_in_two_splits(num_prompts: int, num_eval_prompts: int, first_seed: int) -> None:
    task = Episodes(num_prompts=num_prompts, num_eval_prompts=num_eval_prompts, first_seed=first_seed)
    seeds = {split: [prompt.meta["seed"] for prompt in task.prompts(split)] for split in SPLITS}
    assert {split: len(of_split) for split, of_split in seeds.items()} == {
        "train": num_prompts,
        "validation": num_eval_prompts,
        "test": num_eval_prompts,
    }
    whole = sorted(seed for of_split in seeds.values() for seed in of_split)
    assert whole == list(range(first_seed, first_seed + num_prompts + 2 * num_eval_prompts))


def test_more_prompts_to_train_on_leave_the_held_out_ones_alone() -> None:
    for split in ("validation", "test"):
        assert Episodes(num_prompts=9).prompts(split) == Episodes(num_prompts=900).prompts(split)


def test_a_prompt_holds_what_an_episode_needs() -> None:
    task = Episodes(instruction="Guess.", num_eval_prompts=2, first_seed=10, options={"below": 5})
    assert task.prompts("train")[1] == Prompt(
        "episodes/train/1", "Guess.", meta={"seed": 15, "options": {"below": 5}}
    )
    assert Episodes().prompts("test")[0] == Prompt("episodes/test/0", "", meta={"seed": 0})


def test_a_run_needs_no_reward_where_the_environment_gives_one() -> None:
    run = run_settings(
        ["model.path=m", "task=episodes", "environment=gymnasium_text", "environment.id=CartPole-v1"]
    )
    assert run.reward == () and run.environment.rewards_itself
