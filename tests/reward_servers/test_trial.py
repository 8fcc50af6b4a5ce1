"""A trial on two texts before anything depends on the answers: its refusals and its warnings."""

import asyncio
import copy
import pickle
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError, RewardError
from contracts.objects import held
from contracts.rollout import Prompt
from contracts.scores import Sample
from contracts.settings import build
from reward_servers.local import LocalRewardClient
from reward_servers.server import MetricServer, RewardServer
from reward_servers.serving.replicas import RewardReplica
from reward_servers.settings import Part, RewardServersSettings, Sandbox, ServerSettings, parts
from reward_servers.user_rewards import apart
from reward_servers.user_rewards.apart import try_apart
from reward_servers.user_rewards.sandbox import SandboxedServer
from reward_servers.user_rewards.trial import MADE_UP, TEXTS, Trial, Verdict, trial_of
from reward_servers.user_rewards.watched import Watch

GRADERS = "tests.reward_servers.graders"
PROMPTS = [Prompt("p/0", "What is 6 · 7?", ("42",)), Prompt("p/1", "Who?", ("", "she"))]
REAL = trial_of(PROMPTS)
LIMITS = Sandbox(memory_gib=2.0, seconds=2.0, file_mib=1.0)

# The grader's name, and why it is refused on a run's own prompts; "" where it is not.
REWARDS = {
    "Words": "",
    "Ranked": "",
    "Strict": "",  # one of the two texts ends in a number
    "Mapped": "score() returned a dict {0.0: '42', 1.0: 'I am not sure. Perhaps it is 7?'}; expected a list",
    "Mean": "score() returned 1 scores for 2 samples",
    "Misspelt": "none of 2 texts could be scored: AttributeError: 'Sample' object has no attribute 'answer'",
}


def own(name: str) -> Part:
    return Part(name=f"{GRADERS}:{name}", label=name)


# The texts


def test_a_trial_has_the_runs_first_prompts() -> None:
    first, second = REAL.samples
    assert first == Sample("42", "What is 6 · 7?", ("42",), {}, "trial/p/0", 1, turns=("42",))
    assert (second.text, second.prompt, second.references) == (TEXTS[1], "Who?", ("", "she"))
    (only, again) = trial_of([PROMPTS[1]]).samples
    assert (only.text, again.text) == ("she", TEXTS[1])
    assert only.group == again.group == "trial/p/1"
    assert trial_of([replace(PROMPTS[0], references=(" ",))]).samples[0].text == TEXTS[0]


def test_where_there_are_no_prompts_they_are_made_up() -> None:
    assert trial_of([]) is MADE_UP
    assert not MADE_UP.are_real and len(MADE_UP.samples) == 2


# Refusals


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_are_refused_for_what_they_return(name: str) -> None:
    verdict = RewardServer(own(name)).try_out(REAL)
    assert verdict.refusal.startswith(f"reward {name}: {REWARDS[name]}" if REWARDS[name] else "")
    assert bool(verdict.refusal) == bool(REWARDS[name])


@pytest.mark.parametrize("name", REWARDS)
def test_a_sandboxed_one_is_tried_in_its_sandbox_with_the_same_verdict(name: str) -> None:
    server = SandboxedServer(own(name), LIMITS)
    assert server.try_out(REAL) == RewardServer(own(name)).try_out(REAL)
    server.close()


def test_what_hangs_or_dies_in_its_sandbox_is_refused() -> None:
    for name, message in (("Hanging", "gave no answer within 2 s and was ended"), ("Deadly", "exit code 3")):
        server = SandboxedServer(own(name), LIMITS)
        verdict = server.try_out(REAL)
        assert verdict.refusal.startswith(f"reward {name}: its process") and message in verdict.refusal
        server.close()


def test_what_raises_for_made_up_texts_alone_is_told_and_not_refused() -> None:
    server = RewardServer(own("Misspelt"))
    verdict = server.try_out(MADE_UP)
    assert not verdict.refusal
    assert verdict.warning.startswith("reward Misspelt: none of 2 texts could be scored: AttributeError")
    assert RewardServer(own("Mapped")).try_out(MADE_UP).refusal  # wrong for any text


def test_what_it_says_it_needs_is_not_made_up() -> None:
    picky = own("Picky")  # references, and an intent
    assert RewardServer(picky).try_out(MADE_UP) == Verdict()
    with_intent = [replace(prompt, meta={"intent": "x"}) for prompt in PROMPTS]
    refusal = RewardServer(picky).try_out(trial_of(with_intent)).refusal
    assert "could not convert string to float: 'x'" in refusal
    fine = [replace(prompt, meta={"intent": 3}) for prompt in PROMPTS]
    assert RewardServer(picky).try_out(trial_of(fine)) == Verdict()


@pytest.mark.parametrize(
    ("name", "refusal", "warning"),
    [
        ("Vowels", "", ""),
        ("Formless", "compute() returned a float 1.0 for 'mine/formless'; expected a MetricValue", ""),
        ("Mapped", "compute() returned a list [1.0]; expected a mapping of keys to MetricValue", ""),
        ("Misspelt", "", "could not be computed over 2 texts: IndexError"),  # it wants three
    ],
)
def test_metrics_are_refused_for_what_they_return(name: str, refusal: str, warning: str) -> None:
    verdict = MetricServer(own(name)).try_out(REAL)
    for text, expected in ((verdict.refusal, refusal), (verdict.warning, warning)):
        assert text.startswith(f"metric {name}: {expected}") if expected else text == ""


def test_in_this_process_users_classes_alone_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"reward Mapped: score\(\) returned a dict"):
        LocalRewardClient([own("Words"), own("Mapped")]).try_out(REAL)
    monkeypatch.setattr(RewardServer, "try_out", lambda *_: pytest.fail("a built-in one"))
    assert LocalRewardClient(parts("length")).try_out(REAL) == []


# Groups


def test_who_looks_at_groups_is_told_that_they_are_cut() -> None:
    for name in ("Ranked", "Peeking"):
        assert "it reads sample.group" in RewardServer(own(name)).try_out(REAL).warning
    assert RewardServer(own("Words")).try_out(REAL) == Verdict()


@pytest.mark.parametrize("limits", [None, {}])
def test_nothing_is_remembered_once_a_group_was_looked_at(limits: dict[str, Any] | None) -> None:
    """Although the class says that its scores depend on the sample alone."""

    async def scenario() -> None:
        replica = RewardReplica(own("Peeking"), build(ServerSettings, {"sandbox": limits}, ""))
        group = [Sample("a", group="p"), Sample("a", group="p"), Sample("a", group="q")]
        for _ in range(2):  # three equal texts: a cache would show one of them
            scored = await replica.score(group)
            assert (scored.answers, scored.num_cached) == ([(2.0, None), (2.0, None), (1.0, None)], 0)

    asyncio.run(scenario())


def test_a_watched_sample_is_as_any_other() -> None:
    plain = Sample("a", "p", ("r",), {"k": 1}, "train/1")
    for look in (
        lambda sample: (sample.text, sample.prompt, sample.references, sample.meta),
        repr,
        str,
        lambda sample: isinstance(sample, Sample),
        lambda sample: (sample == plain, plain == sample, sample == sample, sample != plain),
        lambda sample: (sample == Sample("a", "p", ("r",), {"k": 1}, "train/2"), sample == "a"),
        lambda sample: ([Sample("b"), sample].index(plain), plain in [sample], sample in [plain]),
    ):
        watch = Watch()
        (sample,) = watch.over([plain])
        assert look(sample) == look(plain) and not watch.was_read
    watch, hashable = Watch(), replace(plain, meta=())  # type: ignore[arg-type]
    assert {hashable: 1}[watch.over([hashable])[0]] == 1 and not watch.was_read
    for copied in (
        lambda sample: pickle.loads(pickle.dumps(sample)),
        copy.copy,
        copy.deepcopy,
        asdict,
        lambda sample: replace(sample, text="b").group,
    ):
        watch = Watch()
        (sample,) = watch.over([plain])
        assert copied(sample) == copied(plain) and watch.was_read  # reading a copy is not seen
    with pytest.raises(AttributeError):
        sample.text = "b"  # type: ignore[misc]


# Before anything runs


@pytest.mark.parametrize("name", ["Mapped", "Mean", "Misspelt"])
def test_a_process_apart_refuses_with_the_same_words(name: str) -> None:
    with pytest.raises(InputError) as caught:
        try_apart([own(name)], [], RewardServersSettings(), REAL)
    assert str(caught.value) == RewardServer(own(name)).try_out(REAL).refusal


def test_a_process_apart_is_as_this_one_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_JUDGES_KEY", "secret")
    (tmp_path / "lexicon.txt").write_text("a")
    (tmp_path / "reward_servers").mkdir()  # a folder named as one of ours
    located = Part(
        name=f"{GRADERS}:Located", label="L", options={"file": "lexicon.txt", "variable": "MY_JUDGES_KEY"}
    )
    assert try_apart([located, own("Words")], [own("Vowels")], RewardServersSettings(), REAL) == []
    sandboxed = build(RewardServersSettings, {"L": {"sandbox": {}}}, "")
    with pytest.raises(InputError, match=r"returned a dict \{'there': False\}"):
        try_apart([located], [], sandboxed, REAL)


def test_metrics_are_tried_apart_as_well() -> None:
    with pytest.raises(InputError, match=r"metric Formless: compute\(\) returned a float"):
        try_apart([], [own("Formless")], RewardServersSettings(), REAL)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that were started."""
    started: list[Any] = []

    class Watched(apart.Child):
        def __init__(self, *arguments: Any) -> None:
            started.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(apart, "Child", Watched)
    yield started
    for child in started:
        assert child._process.poll() is not None  # none is left


def test_what_is_heavy_is_left_to_its_replica(monkeypatch: pytest.MonkeyPatch, children: list[Any]) -> None:
    monkeypatch.setattr(apart, "LOAD_S", 1.0)
    (warning,) = try_apart([own("Heavy")], [], RewardServersSettings(), REAL)
    assert warning.startswith(
        "reward Heavy: not tried here, but when its replica is up: its process gave no answer"
    )
    on_gpu = build(RewardServersSettings, {"Heavy": {"num_gpus": 1}}, "")
    (warning,) = try_apart([own("Heavy")], [], on_gpu, REAL)
    assert warning == "reward Heavy: it asks for a GPU, and is tried when its replica is up"
    assert len(children) == 1


def test_a_class_that_can_not_be_made_is_refused() -> None:
    with pytest.raises(InputError, match=r"Unmakeable\(\) raised FileNotFoundError: my_reward_model\.bin"):
        try_apart([own("Unmakeable")], [], RewardServersSettings(), REAL)


def test_what_hangs_or_dies_is_refused_and_ended(children: list[Any]) -> None:
    soon = build(RewardServersSettings, {"default": {"timeout_s": 1.0}}, "")
    began = time.monotonic()
    with pytest.raises(
        InputError, match="reward Hanging: its process gave no answer within 1 s and was ended"
    ):
        try_apart([own("Hanging")], [], soon, REAL)
    assert time.monotonic() - began < 60
    with pytest.raises(InputError, match=r"reward Deadly: its process ended \(exit code 3\)"):
        try_apart([own("Deadly")], [], soon, REAL)


@pytest.mark.parametrize("meta", [{"k": {1, 2}}, {"k": (1, 2)}, {1: "a"}])
def test_meta_data_that_another_process_would_see_otherwise(meta: Any, children: list[Any]) -> None:
    trial = Trial((Sample("a", meta=meta),), are_real=True)
    (warning,) = try_apart([own("Words")], [], RewardServersSettings(), trial)
    assert warning == "reward Words: the task's meta data is no JSON; it is tried when its replica is up"
    assert children == []


def test_what_a_reward_says_of_itself_reaches_its_server() -> None:
    """A wrong type is a failure of each sample at run time, too, and no key is ever a score."""
    answers = RewardServer(own("Mapped")).score([Sample("a"), Sample("b")])
    assert [score for score, _ in answers] == [None, None]
    assert "score() returned a dict" in (answers[0][1] or "")
    with pytest.raises(RewardError, match=r"compute\(\) returned a list"):
        MetricServer(own("Mapped")).compute([Sample("a")])


def test_a_refusal_is_caused_by_what_was_raised_from_the_users_first_line_on() -> None:
    def helper(text: str) -> float:
        return 1 / len(text[:0])

    class Divides:
        def score(self, samples: Any) -> list[float]:
            return [helper(sample.text) for sample in samples]

    with held({}, {"Divides@0": Divides}):
        (part,) = parts({"name": "object:Divides@0"})
        with pytest.raises(InputError, match=r"ZeroDivisionError: .*line \d+: return 1 / len") as caught:
            RewardServer(part).try_out(REAL).check()
    raised = str(caught.value.__cause__)
    assert "in helper" in raised and "in score" in raised and "server.py" not in raised
    assert raised.rstrip().endswith("ZeroDivisionError: division by zero")
