"""The program and the commands of docs/agents.md, run as they stand there."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.rollout import Lease, Prompt, Rollout, Sampling
from rollout_workers.environments.program import Program
from rollout_workers.gateway.episode_door import MOST_REFUSED
from rollout_workers.gateway.server import MOST_BYTES
from rollout_workers.settings import RolloutSettings
from rollout_workers.worker import RolloutWorker
from services.config.compose import run_settings
from tests.chat_templates import TEMPLATES, make_chat_model

PAGE = (Path(__file__).parents[3] / "docs/agents.md").read_text()
COMMANDS = re.findall(r"```sh\nwhetstone train (.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Play a prompt by the page's program of this number, as its command says."""
    for name, body in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    model = str(make_chat_model(tmp_path / "model", TEMPLATES["default_system"]))

    def played(number: int, prompt: Prompt) -> Rollout:
        settings = run_settings(shlex.split(COMMANDS[number].replace("\\\n", " "))).environment
        assert isinstance(settings, Program)
        if settings.partner_options is not None:
            partner = settings.partner_options.model_copy(update={"model": model})
            settings = settings.model_copy(update={"partner_options": partner})
        rollout = RolloutSettings(max_tokens=4, dtype="float32")
        worker = RolloutWorker(model, model, None, "transformers", rollout, environment=settings)
        worker.ready()
        worker.submit([Lease(1, prompt, (1,), 1, 1, Sampling(max_tokens=4))])
        (made,) = worker.poll(120.0).rollouts
        worker.close()
        assert made.error is None
        return made

    return played


def test_the_pages_agent_runs_as_the_pages_command_starts_it(play: Any) -> None:
    made = play(0, Prompt("p", "3 + 4 = ?", references=("7",)))
    assert made.total_reward == 0.0
    assert made.info["letters"] == len(made.turns[0].text)
    assert made.turns[0].observation_text == "3 + 4 = ?"


def test_the_pages_debate_has_two_roles_and_a_frozen_judge(play: Any) -> None:
    made = play(1, Prompt("p", "It rains."))
    pro, con = made.turns
    assert [(turn.role, turn.fresh) for turn in made.turns] == [("pro", True), ("con", True)]
    assert abs(pro.reward) == 1 and con.reward == -pro.reward and made.total_reward == 0
    assert made.info["reward_pro"] == pro.reward and made.info["calls"] == 2
    assert con.observation_text.endswith(f"The other side says: {pro.text}")


def test_the_pages_options_and_limits_are_those_of_the_code() -> None:
    rows = re.findall(r"^`environment\.(\w+)`(?:, `environment\.(\w+)`)? \| ([\w, ]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for first, second, defaults in rows:
        values = defaults.split(", ") * 2
        for name, value in zip(filter(None, (first, second)), values, strict=False):
            default = Program.model_fields[name].default
            assert str(default).removesuffix(".0") == value.replace("null", "None"), name
    named = set(re.findall(r"`environment\.(\w+)[`=]", PAGE)) | {"command"}
    assert named >= set(Program.model_fields) - set(Program.__base__.model_fields)  # type: ignore[union-attr]
    assert f"after {MOST_REFUSED} refused calls" in PAGE
    assert f"above {MOST_BYTES // 2**20} MiB" in PAGE
