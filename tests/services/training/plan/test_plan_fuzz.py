"""Whatever is asked for, there is a plan or one clear message; never another exception, never a hang.

WHETSTONE_FUZZ_EXAMPLES=1000 draws so many command lines; in the suite there are fewer.
"""

import io
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from contracts.errors import InputError
from services.commands import annotate
from services.training.plan.plan import make_plan
from services.training.plan.screen import drawn
from tests.models import make_tiny_model
from tests.services.configurations import Files, command_lines

NUM_EXAMPLES = int(os.environ.get("WHETSTONE_FUZZ_EXAMPLES", "60"))
HANGS_AFTER_S = 20
ADDRESS = "127.0.0.1:6379"  # of no cluster: a plan asks none
LONGEST = 5000  # letters of a message that somebody would read
NOISE = ("Traceback", "validation error for", " object at 0x", "<class ", "function-", "\x1b")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    place = tmp_path_factory.mktemp("fuzz")
    models = [
        make_tiny_model(place / "llama"),
        make_tiny_model(place / "gpt2", architecture="gpt2"),
        make_tiny_model(place / "bart", architecture="bart"),
        make_tiny_model(place / "t5", architecture="t5"),
    ]
    rows = [{"prompt": f"{n} {n + 1}", "references": [f"{n + 2}"]} for n in range(40)]
    prompts = place / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    annotated, broken = _annotated(models[0], place), _broken(models[0], place)
    return Files(models, broken, prompts, annotated, place / "runs")


def _broken(whole: Path, place: Path) -> list[Path]:
    """A folder without a configuration, and one whose weights are missing."""
    empty, light = place / "empty", place / "light"
    empty.mkdir()
    light.mkdir()
    for file in whole.iterdir():
        if file.suffix == ".json":
            (light / file.name).write_bytes(file.read_bytes())
    return [empty, light, place / "nowhere"]


def _annotated(model: Path, place: Path) -> Path:
    folder = place / "annotated"
    annotate.run(
        [
            "task={name: 'tests.services.annotated_rows:Answered'}",
            "reward={name: 'tests.services.annotated_rows:Length', label: length}",
            f"reference={model}",
            f"output={folder}",
            "executor=here",
            "rollout.max_tokens=4",
            "rollout.engine=transformers",
            "learner.device=cpu",
        ]
    )
    return folder


@contextmanager
def at_most(cpu_s: int, doing: str) -> Iterator[None]:
    """Seconds of the processor's time, which a busy machine does not stretch; the clock is pytest's."""

    def ring(*_: Any) -> None:
        raise AssertionError(f"no answer after {cpu_s} s: {doing}")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def answer(overrides: list[str]) -> str:
    """ "plan", with its page drawn; or what was said in its place."""
    with at_most(HANGS_AFTER_S, " ".join(overrides)):
        try:
            plan = make_plan(overrides)
        except InputError as error:
            return str(error)
    page = io.StringIO()
    Console(file=page, width=100).print(drawn(plan))
    assert "What it comes to" in page.getvalue()
    return "plan"


@pytest.mark.timeout(300 + 2 * NUM_EXAMPLES)
def test_every_configuration_has_a_plan_or_one_clear_message(
    files: Files, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        derandomize=NUM_EXAMPLES <= 100,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(command_lines(files), st.booleans())
    def look(overrides: list[str], joined: bool) -> None:
        monkeypatch.setenv("RAY_ADDRESS", ADDRESS) if joined else monkeypatch.delenv("RAY_ADDRESS", False)
        message = answer(overrides)
        assert message.strip() and len(message) < LONGEST, overrides
        assert not [noise for noise in NOISE if noise in message], (overrides, message)
        outcomes[message if message == "plan" else "message"] += 1

    look()
    with capfd.disabled():
        if NUM_EXAMPLES > 100:
            print(f"\n{outcomes['plan']} plans, {outcomes['message']} messages")
    assert not files.output_dir.exists(), "a plan writes nothing"
    assert outcomes["plan"] and outcomes["message"]
