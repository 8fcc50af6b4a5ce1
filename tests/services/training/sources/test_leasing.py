"""Prompts to leases: numbers, seeds, tokens, and an order that goes on where it stopped."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import Prompt, Sampling
from services.data.tokens.prompt_tokens import PromptTokens
from services.training.sources.leasing import EVALUATION, LeaseSource, evaluation_leases, lease_seed
from tests.fakes import WordTokens, prompts

SAMPLING = Sampling(max_tokens=4)
TOKENS = PromptTokens(WordTokens())


def source(count: int = 5, group_size: int = 1, seed: int = 3) -> LeaseSource:
    return LeaseSource(prompts(count), TOKENS, SAMPLING, group_size=group_size, seed=seed)


def test_numbers_count_up_and_every_prompt_comes_once_an_epoch() -> None:
    leases = source().lease(5) + source(seed=4).lease(0)

    assert [lease.id for lease in leases] == [0, 1, 2, 3, 4]
    assert {lease.prompt.id for lease in leases} == {f"p/{row}" for row in range(5)}
    assert all(lease.tokens == (10 + len(lease.prompt.text),) for lease in leases)
    assert all(lease.sampling is SAMPLING for lease in leases)


def test_a_group_samples_one_prompt_with_seeds_of_its_own() -> None:
    first, second, third, fourth = source(group_size=2).lease(2)

    assert (first.group, second.group, third.group, fourth.group) == (0, 0, 1, 1)
    assert first.prompt == second.prompt != third.prompt == fourth.prompt
    assert len({first.seed, second.seed, third.seed, fourth.seed}) == 4


def test_another_seed_gives_another_order_and_other_seeds() -> None:
    mine, others = source(count=50, seed=1).lease(50), source(count=50, seed=2).lease(50)

    assert [lease.prompt.id for lease in mine] != [lease.prompt.id for lease in others]
    assert not {lease.seed for lease in mine} & {lease.seed for lease in others}


@given(st.integers(0, 9), st.integers(1, 9), st.integers(1, 3))
def test_a_restored_source_gives_exactly_the_rest(before: int, after: int, group_size: int) -> None:
    straight = source(group_size=group_size)
    stopped = source(group_size=group_size)
    assert stopped.lease(before) == straight.lease(before)
    stopped.finish(before, [])
    resumed = source(group_size=group_size)
    resumed.restore(stopped.state())

    assert resumed.lease(after) == straight.lease(after)


def test_held_out_prompts_keep_their_numbers_and_seeds_and_never_meet_training() -> None:
    def leases() -> list[tuple[int, int, str, int]]:
        leased = evaluation_leases(prompts(3), TOKENS, SAMPLING, samples=2, seed=3)
        return [(lease.id - EVALUATION, lease.group, lease.prompt.id, lease.seed) for lease in leased]

    assert [row[:3] for row in leases()] == [
        (0, 0, "p/0"),
        (1, 0, "p/0"),
        (2, 1, "p/1"),
        (3, 1, "p/1"),
        (4, 2, "p/2"),
        (5, 2, "p/2"),
    ]
    assert leases() == leases()
    assert not {row[3] for row in leases()} & {lease.seed for lease in source().lease(100)}


def test_a_lease_seed_fits_a_signed_64_bit_number() -> None:
    seeds = [lease_seed(run, lease) for run in range(20) for lease in (0, 1, EVALUATION)]

    assert len(set(seeds)) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_heavy_prompts_are_leased_more_often_and_a_restored_source_goes_on() -> None:
    weighted = [
        Prompt("p/0", "a", weight=1.0),
        Prompt("p/1", "b", weight=3.0),
        Prompt("p/2", "c", weight=0.0),
    ]

    def made() -> LeaseSource:
        return LeaseSource(weighted, TOKENS, SAMPLING, group_size=1, seed=2, priority_scale=2.0)

    straight, stopped, resumed = made(), made(), made()
    leases = straight.lease(1000)
    heavy = sum(lease.prompt.id == "p/1" for lease in leases)
    # 9 of 10; the standard deviation of 1000 draws is (1000 * 0.9 * 0.1) ** 0.5 = 9.5
    assert abs(heavy - 900) < 50
    assert all(lease.prompt.id != "p/2" for lease in leases)
    stopped.lease(7)
    stopped.finish(7, [])
    resumed.restore(stopped.state())
    assert resumed.lease(50) == leases[7:57]
