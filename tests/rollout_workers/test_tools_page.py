"""The code and the commands of docs/tools.md, run as they stand there."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.tools import Tools
from rollout_workers.tools.mcp_server import McpServer
from rollout_workers.tools.tool_functions import TOOLS, FunctionTools, ToolError
from services.config.compose import run_settings

PAGE = (Path(__file__).parents[2] / "docs/tools.md").read_text()
MODULES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [
    shlex.split(shown.replace("\\\n", " "))[2:]
    for shown in re.findall(r"```sh\n(whetstone train .*?)```", PAGE, re.DOTALL)
]


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, body in MODULES.items():
        (tmp_path / f"{name}.py").write_text(body)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("Pears are sold out.")
    (tmp_path / "questions.jsonl").write_text('{"prompt": "Are there pears?", "references": ["no"]}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHETSTONE_FOLDER", str(tmp_path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def test_your_own_tool_has_fifteen_lines_and_works() -> None:
    assert len(MODULES["my_tools"].splitlines()) <= 15
    tools = FunctionTools(["my_tools:in_stock"])
    assert tools.call("in_stock", {"fruit": "apples", "at_least": 2}, 5.0) == "true"
    with pytest.raises(ToolError, match="ValueError: plums are not sold; there are apples, pears"):
        tools.call("in_stock", {"fruit": "plums"}, 5.0)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_is_a_valid_run(command: list[str]) -> None:
    run = run_settings(command)
    assert isinstance(run.environment, Tools) and run.judging.at == "answer"
    run.environment.check()


def test_the_server_serves() -> None:
    server = McpServer("python my_server.py", start_s=120)
    assert server.call("add", {"a": 1, "b": 2}, 60.0) == "3"
    server.close()


def test_options_and_their_defaults_are_those_of_the_class() -> None:
    of_tools = {name for name in Tools.model_fields if name not in EnvironmentSettings.model_fields}
    rows = re.findall(r"^(`environment\.\w+`(?:, `environment\.\w+`)*) \| ([^|]+) \|", PAGE, re.MULTILINE)
    written_defaults = {}
    for names, defaults in rows:
        for name, default in zip(re.findall(r"\.(\w+)", names), defaults.split(", "), strict=True):
            written_defaults[name] = default.strip("`")
    assert of_tools - written_defaults.keys() == set() and written_defaults.keys() - of_tools == {"max_turns"}
    for name, default in written_defaults.items():
        real_default = Tools.model_fields[name].get_default(call_default_factory=True)
        assert default == {"()": "[]", "None": "null"}.get(
            str(real_default), str(real_default).removesuffix(".0")
        ), name
    assert {name for name in TOOLS} == set(re.findall(r"^`(\w+)` \| \w+ ", PAGE, re.MULTILINE))
