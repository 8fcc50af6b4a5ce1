"""A reward in a separate process may hang, die, take memory or print without harm to other texts."""

import asyncio
import os
import re
import time
from collections.abc import Iterator

import psutil
import pytest

from contracts.errors import InputError
from contracts.objects import held
from contracts.scores import Sample
from reward_servers.server import RewardServer
from reward_servers.serving.replicas import RewardReplica
from reward_servers.settings import Part, RewardServersSettings, Sandbox, ServerSettings
from reward_servers.user_rewards.apart import try_apart
from reward_servers.user_rewards.sandbox import SandboxedServer
from reward_servers.user_rewards.trial import MADE_UP
from whetstone.objects import Objects, configured

GREEDY = Part(name="tests.reward_servers.greedy_reward:Greedy")
LIMITS = Sandbox(memory_gib=2.0, seconds=1.5, file_mib=1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[SandboxedServer]:
    made = SandboxedServer(GREEDY, LIMITS)
    yield made
    made.close()


def samples(*texts: str) -> list[Sample]:
    return [Sample(text=text) for text in texts]


def test_it_answers_as_the_server_in_this_process_does(server: SandboxedServer) -> None:
    part, rows = Part(name="length"), samples("a b", "", "c")
    sandboxed = SandboxedServer(part, LIMITS)

    assert sandboxed.score(rows) == RewardServer(part).score(rows)
    assert server.score([]) == []
    sandboxed.close()


def test_it_sees_all_that_a_reward_in_this_process_sees() -> None:
    part = Part(name="tests.reward_servers.graders:Ranked")
    rows = [Sample("aa", group="p"), Sample("b", group="q"), Sample("a", group="p"), Sample("bb", group="q")]
    sandboxed = SandboxedServer(part, LIMITS)
    assert (
        sandboxed.score(rows)
        == RewardServer(part).score(rows)
        == [(1.0, None), (0.0, None), (0.0, None), (1.0, None)]
    )
    sandboxed.close()


def test_python_objects_reach_it_by_its_name_and_its_options() -> None:
    def own(samples: list[Sample]) -> list[float]:
        return [float(len(sample.text)) for sample in samples]

    configured({"reward": own}, kept := Objects())
    (name,) = kept.packed
    address = f"object:{name}"
    with held(kept.packed):
        for part in (
            Part(name=address, label="own"),
            Part(name="function", label="own", options={"function": address}),
        ):
            sandboxed = SandboxedServer(part, LIMITS)
            assert sandboxed.score(samples("abc")) == [(3.0, None)]
            sandboxed.close()
            assert try_apart([part], [], RewardServersSettings(), MADE_UP) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hang", "gave no answer within"),
        ("exit", "exit code 3"),
        ("raise", "ValueError: no"),
        ("memory", "MemoryError"),
        ("file", "large|signal 25"),
    ],
)
def test_what_goes_wrong_costs_the_one_text_alone(server: SandboxedServer, text: str, reason: str) -> None:
    (first, none), (score, why), (last, nothing) = server.score(samples("ab", text, "abc"))

    assert (first, none, last, nothing) == (2.0, None, 3.0, None)
    assert score is None and why is not None and re.search(reason, why), why
    assert server.score(samples("abcd")) == [(4.0, None)]


def test_what_it_prints_is_no_answer(server: SandboxedServer) -> None:
    assert server.score(samples("print")) == [(5.0, None)]


def test_secrets_are_not_around(server: SandboxedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_TOKEN", "secret")
    fresh = SandboxedServer(GREEDY, LIMITS)

    assert fresh.score(samples("environment:WHETSTONE_TOKEN", "environment:PATH")) == [
        (0.0, None),
        (1.0, None),
    ]
    fresh.close()


def test_it_is_another_process_and_ends_with_its_server() -> None:
    server = SandboxedServer(GREEDY, LIMITS)
    ((pid, _),) = server.score(samples("pid"))
    assert pid is not None and int(pid) != os.getpid() and psutil.pid_exists(int(pid))

    server.close()

    assert not psutil.pid_exists(int(pid))


def test_a_batch_with_a_text_that_hangs_is_answered_in_twice_the_seconds() -> None:
    server = SandboxedServer(GREEDY, LIMITS)
    texts = ["a" * (n + 1) for n in range(16)]
    started = time.monotonic()

    answers = server.score(samples(*texts[:11], "hang", *texts[11:]))

    own_s = LIMITS.seconds * 2
    assert time.monotonic() - started < own_s + 8 * 5.0  # and eight children's starts, on a busy machine
    assert [score for score, _ in answers if score is not None] == [float(len(text)) for text in texts]
    assert answers[11][0] is None
    server.close()


def test_what_is_no_json_is_refused_and_costs_no_process(server: SandboxedServer) -> None:
    ((before, _),) = server.score(samples("pid"))

    answers = server.score([Sample(text="ab", meta={"n": float("nan")}), *samples("abc")])

    assert answers[0][0] is None and answers[0][1] is not None and "have to be JSON" in answers[0][1]
    assert answers[1] == (3.0, None)
    assert server.score(samples("pid")) == [(before, None)]


def test_what_it_started_ends_with_it() -> None:
    server = SandboxedServer(GREEDY, LIMITS)
    ((child, _),) = server.score(samples("child"))
    assert child is not None and psutil.pid_exists(int(child))

    server.close()

    gone = psutil.Process(int(child)) if psutil.pid_exists(int(child)) else None
    # Only its parent can read a process's exit code, and this process is not the parent.
    assert (
        gone is None or gone.status() == psutil.STATUS_ZOMBIE or not psutil.wait_procs([gone], timeout=10)[1]
    )


def test_it_may_say_more_than_a_file_may_hold(server: SandboxedServer) -> None:
    for _ in range(4):
        assert server.score(samples("say")) == [(3.0, None)]  # 400 KB each, of the 1 MiB of a file


def test_a_reward_that_cannot_be_made_is_refused_with_its_own_reason() -> None:
    with pytest.raises(InputError, match="no such reward; did you mean 'length'"):
        SandboxedServer(Part(name="lengthh"), LIMITS)


def test_a_replica_takes_the_sandbox_from_its_settings() -> None:
    replica = RewardReplica(GREEDY, ServerSettings(sandbox=LIMITS))

    answers = asyncio.run(replica.score(samples("ab", "exit"))).answers

    assert answers[0] == (2.0, None)
    assert answers[1][0] is None


def test_a_sandbox_that_outlasts_the_call_is_refused() -> None:
    with pytest.raises(ValueError, match="has to be less than half of timeout_s=10"):
        ServerSettings(timeout_s=10, sandbox=Sandbox(seconds=5))


def test_answers_are_found_in_the_sandbox_and_a_bad_text_costs_one() -> None:
    sandboxed = SandboxedServer(Part(name="tests.reward_servers.graders:LastNumber"), LIMITS)
    assert sandboxed.answers(["it is 4", "5 or 6", "none"]) == ["4", "6", None]
    assert sandboxed.answers(["it is 4", "exit", "none", "8"]) == ["4", None, None, "8"]
    sandboxed.close()
    other = SandboxedServer(GREEDY, LIMITS)
    assert other.answers(["4"]) is None
    other.close()
