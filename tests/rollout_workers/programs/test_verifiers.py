"""Environments of the package `verifiers` in a separate Python with other packages.

Some tests need that Python, and are skipped without it: `make verifiers` makes it, or
WHETSTONE_VERIFIERS names it.
"""

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from rollout_workers.environments.verifiers import SCRIPT, Verifiers
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker
from tests.chat_templates import TEMPLATES, make_chat_model

PYTHON = Path(os.environ.get("WHETSTONE_VERIFIERS", Path(__file__).parents[3] / ".venv-verifiers/bin/python"))
PATIENCE_S = 500.0
TASKSET = '''
import verifiers.v1 as vf

__all__ = ["Words", "Talk"]


class Spelling(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "spelling"

    @vf.tool
    def letters(self, word: str) -> int:
        """Count the letters of a word."""
        return len(word)


class Config(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Word(vf.Task[vf.TaskData, vf.State, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Spelling(config.tools)]

    @vf.reward(weight=0.5)
    async def answered(self, trace: vf.Trace) -> float:
        return float(bool(trace.last_reply))

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or ""))


class WordsConfig(vf.TasksetConfig):
    words: list[str] = ["rain", "snow"]
    task: Config = Config()


class Words(vf.Taskset[Word, WordsConfig]):
    def load(self):
        return [Word(vf.TaskData(prompt=f"Spell {word}."), self.config.task) for word in self.config.words]


class TalkConfig(vf.EnvConfig):
    left: vf.AgentConfig = vf.AgentConfig()
    right: vf.AgentConfig = vf.AgentConfig()


class Talk(vf.Env[TalkConfig]):
    async def setup(self, agents):
        agents.right.trainable = agents.right.config.model != "fixed"

    async def run(self, task, agents):
        await agents.left.run(task)
        await agents.right.run(task)

    async def finalize(self, task, episode):
        for trace, reward in zip(episode.traces, (1.0, -2.0)):
            trace.record_reward("won", reward)


if __name__ == "__main__":
    Spelling.run()
'''
SINGLE = TASKSET.replace('["Words", "Talk"]', '["Words"]')
needs_verifiers = pytest.mark.skipif(not PYTHON.exists(), reason=f"there is no {PYTHON}: make verifiers")


def test_what_another_python_runs_imports_nothing_of_ours() -> None:
    tree = ast.parse(SCRIPT.read_text())
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    others = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"verifiers"}


def test_the_command_names_the_taskset_with_its_options() -> None:
    options = {"taskset": {"words": ["rain"]}, "agent": {"max_turns": 2}}
    python, script, config = Verifiers(python="py", id="words", options=options).words("{prompt}")
    assert (python, script) == ("py", str(SCRIPT)) and SCRIPT.exists()
    assert json.loads(config) == {**options, "taskset": {"words": ["rain"], "id": "words"}}
    with pytest.raises(ValueError, match=r"taskset\.id is environment\.id"):
        Verifiers(python="py", id="words", options={"taskset": {"id": "others"}})


def test_a_python_without_verifiers_is_refused() -> None:
    with pytest.raises(InputError, match=r"no program is named 'no-such-python'"):
        Verifiers(python="no-such-python", id="words").check()
    with pytest.raises(InputError, match=r"expected 0\.4 or newer: python -m venv"):
        Verifiers(python=sys.executable, id="words").check()


def test_prompts_are_numbers_of_tasks() -> None:
    settings = Verifiers(python="py", id="words")
    settings.check_prompt(Prompt("p", "", meta={"seed": 3}))
    with pytest.raises(InputError, match="task=episodes"):
        settings.check_prompt(Prompt("p", "text"))


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Rollout]]]:
    """Play tasks of these numbers; a taskset lies in the folder where Whetstone was started."""
    monkeypatch.chdir(tmp_path)
    model = str(make_chat_model(tmp_path / "model", TEMPLATES["default_system"]))
    workers: list[RolloutWorker] = []

    def played(source: str, *seeds: int, **options: Any) -> list[Rollout]:
        Path("my_words.py").write_text(source)
        patience = {"start_timeout_s": PATIENCE_S, "step_timeout_s": PATIENCE_S, "max_attempts": 1}
        if options.pop("has_partner", False):
            patience["partner_options"] = {"model": model, "max_tokens": 4}
        settings = Verifiers(python=str(PYTHON), id="my-words", options=options, **patience)
        settings.check()
        rollout = RolloutSettings(max_tokens=6, dtype="float32")
        workers.append(RolloutWorker(model, model, None, "transformers", rollout, environment=settings))
        workers[-1].ready()
        prompts = [Prompt(f"p/{seed}", "", meta={"seed": seed}) for seed in seeds]
        sampling = Sampling(max_tokens=6)
        workers[-1].submit([Lease(n, prompt, (1,), n, n, sampling) for n, prompt in enumerate(prompts)])
        rollouts: list[Rollout] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(rollouts) < len(seeds) and time.monotonic() < deadline:
            rollouts += workers[-1].poll(1.0).rollouts
        assert len(rollouts) == len(seeds)
        return sorted(rollouts, key=lambda rollout: rollout.lease_id)

    yield played
    for worker in workers:
        worker.close()


@needs_verifiers
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_taskset_with_tools_is_played_and_rewards_itself(play: Callable[..., list[Rollout]]) -> None:
    made, none = play(SINGLE, 1, 5, taskset={"words": ["rain", "snow", "hail"]})
    assert made.error is None and made.info["calls"] == 1 and made.info["refused"] == 0
    (turn,) = made.turns
    assert (turn.observation_text, turn.role, turn.reward) == ("Spell snow.", "", 0.5)
    assert made.info["letters"] == len(turn.text) > 0
    assert turn.num_observed > 100  # the tool's schema is read, too
    assert "there is no task 5: my-words has 3" in str(none.error)


@needs_verifiers
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_several_agents_are_roles_or_partners(play: Callable[..., list[Rollout]]) -> None:
    (made,) = play(TASKSET, 0)  # each has the task's own 0.5, too
    assert [(turn.role, turn.reward) for turn in made.turns] == [("left", 1.5), ("right", -1.5)]
    (made,) = play(TASKSET, 0, right={"model": "partner"}, has_partner=True)
    assert [(turn.role, turn.reward) for turn in made.turns] == [("left", 1.5)]
    (made,) = play(TASKSET, 0, right={"model": "fixed"})
    assert "the role right is not trainable" in str(made.error)


@needs_verifiers
@pytest.mark.long
def test_the_two_pythons_do_not_share_their_packages() -> None:
    """The adapter is of use only if their versions may differ; here they do, and episodes are played."""
    code = "import importlib.metadata as m; print({d.name.lower(): d.version for d in m.distributions()})"
    theirs, ours = (
        ast.literal_eval(subprocess.run([python, "-I", "-c", code], capture_output=True, text=True).stdout)
        for python in (PYTHON, sys.executable)
    )
    assert "verifiers" in theirs and "verifiers" not in ours
    assert {name for name in theirs.keys() & ours if theirs[name] != ours[name]}
