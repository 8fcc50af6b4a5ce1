"""The data set and the metric of docs/extending.md, run as they stand there."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.components import create
from contracts.scores import MetricValue, Sample
from reward_servers.server import MetricServer
from reward_servers.settings import Part
from services.config.compose import run_settings
from services.data.tasks import TASKS
from services.data.tasks.base import Task
from services.training.sources.prompts import prompts_of

PAGE = (Path(__file__).parents[4] / "docs/extending.md").read_text()
MODULES = {name: body for name, body in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL)}


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("my_task", "my_metric"):
        (tmp_path / f"{name}.py").write_text(MODULES[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_data_set_has_prompts_and_says_what_judges_them() -> None:
    task = create("task", "my_task:Capitals", {"question": "{}?"}, TASKS, Task)
    assert [prompt.text for prompt in task.prompts("train")] == ["France?", "Peru?"]
    settings = run_settings(["model.path=gpt2", "task=my_task:Capitals"])
    assert prompts_of(settings.task, settings.task_name, "validation")[0].references == ("Accra",)
    assert [part.name for part in (*settings.reward, *settings.metrics)] == ["exact_match", "rouge"]


def test_the_metric_counts() -> None:
    samples = [Sample(text=text) for text in ("Paris it is", "Paris", "", "Lima")]
    metrics = MetricServer(Part(name="my_metric:FirstWords")).compute(samples)
    assert metrics == {"my/first_words": MetricValue(corpus=0.5)}
