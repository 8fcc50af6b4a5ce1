"""A limit of calls that moves while they are under way."""

import asyncio

from reward_servers.serving.slots import Slots


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_limit_moves_both_ways() -> None:
    async def scenario() -> None:
        slots, inside, go = Slots(2), 0, asyncio.Event()
        seen: list[int] = []

        async def call() -> None:
            nonlocal inside
            async with slots:
                inside += 1
                await go.wait()
                inside -= 1

        calls = [asyncio.create_task(call()) for _ in range(8)]
        for limit in (2, 5, 3, 6):
            await slots.change(limit)
            await settle()
            seen.append(inside)
        assert seen == [2, 5, 5, 6]  # nobody is thrown out when it falls
        go.set()
        await asyncio.gather(*calls)
        assert inside == 0

    asyncio.run(scenario())


def test_after_a_fall_no_more_than_the_new_limit_get_in() -> None:
    async def scenario() -> None:
        slots, inside, most = Slots(4), 0, []

        async def call() -> None:
            nonlocal inside
            async with slots:
                inside += 1
                most.append(inside)
                await asyncio.sleep(0.01)
                inside -= 1

        first = [asyncio.create_task(call()) for _ in range(4)]
        await settle()
        await slots.change(1)
        later = [asyncio.create_task(call()) for _ in range(4)]
        await asyncio.gather(*first, *later)
        assert most == [1, 2, 3, 4, 1, 1, 1, 1]

    asyncio.run(scenario())


def test_a_call_given_up_while_it_waits_leaves_its_place() -> None:
    async def scenario() -> None:
        slots = Slots(1)
        async with slots:
            waiting = asyncio.create_task(slots.__aenter__())
            await settle()
            waiting.cancel()
            await settle()
        async with asyncio.timeout(1), slots:
            pass

    asyncio.run(scenario())
