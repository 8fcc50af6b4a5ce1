"""Runs of other versions of Whetstone: a run goes on where it can, and the rest is named."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.errors import InputError
from contracts.secrets.redaction import without_secrets
from services.config.compose import run_settings
from services.config.other_versions import comparable, completed
from services.config.settings import RunSettings
from services.inference.evaluation.configuration import settings_for
from services.inference.generation.run_model import find_model
from services.runs.claim import plain
from services.runs.folder import RunFolder
from services.studies.comparison.groups import read_groups
from services.training.plan.plan import make_plan
from tests.models import make_tiny_model

ASKED = ["algorithm=grpo", "reward=[length, {name: length, label: near}]", "run_name=run"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> RunSettings:
    return run_settings([*ASKED, f"model.path={model}", f"output_dir={tmp_path}"])


def without(tree: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return a copy without these dotted keys."""
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(tree))
    for key in keys:
        *path, last = key.split(".")
        section = copy
        for name in path:
            section = section[int(name)] if isinstance(section, list) else section[name]
        del section[last]
    return copy


def with_template(model: Path) -> Path:
    file = model / "tokenizer_config.json"
    template = {"chat_template": "{{ messages[0]['content'] }}"}
    file.write_text(json.dumps(json.loads(file.read_text()) | template))
    return model


def opened(settings: RunSettings, there: dict[str, Any]) -> RunFolder:
    """Write another version's configuration, and go on with the run."""
    folder = RunFolder(Path(settings.output_dir) / settings.run_name)
    folder.path.mkdir(exist_ok=True)
    folder.config_file.write_text(yaml.safe_dump(there))
    config = without_secrets(plain(settings.resolved()))
    return RunFolder.open(
        *(settings.output_dir, settings.run_name, settings.resolved(), settings.resume),
        completed=partial(comparable, config=config, model=settings.model, environment=settings.environment),
    )


@pytest.mark.parametrize(
    "keys",
    [
        ("seed",),
        ("model.chat", "model.reference", "evaluation.pass_by", "evaluation.pass_at"),
        ("model.chat.history", "algorithm.kl.estimator", "task.below"),
        ("evaluation", "learner", "environment.template"),
        ("reward.0.weight", "reward.1.weight"),
        ("environment",),
    ],
)
def test_a_run_goes_on_where_its_configuration_lacks_options_that_came_since(
    settings: RunSettings, keys: tuple[str, ...]
) -> None:
    folder = opened(settings, without(settings.resolved(), *keys))
    assert folder.config() == yaml.safe_load(yaml.safe_dump(settings.resolved()))


def test_an_option_that_came_since_is_refused_where_it_changes_something(model: Path, tmp_path: Path) -> None:
    options = ["model.chat.history=template", "algorithm.clip_range_high=0.3", "algorithm.clip_range=0.2"]
    settings = run_settings([*ASKED, f"model.path={model}", f"output_dir={tmp_path}", *options])
    older = without(settings.resolved(), "model.chat", "algorithm.clip_range_high", "algorithm.clip_range")
    with pytest.raises(InputError) as refusal:
        opened(settings, older)
    assert "model.chat.history: there 'recorded', asked for 'template'" in str(refusal.value)
    assert "algorithm.clip_range_high: there None, asked for 0.3" in str(refusal.value)
    assert "clip_range:" not in str(refusal.value)  # asked for, and the default


def test_plain_prompts_of_an_older_run_are_what_auto_means_without_a_template(
    model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "1 2"}\n')
    overrides = [*ASKED, "task=prompts", f"task.data_files={file}", f"output_dir={tmp_path}"]
    settings = run_settings([*overrides, f"model.path={model}"])
    older = settings.resolved() | {"environment": {"name": "single_turn", "template": "plain"}}
    assert opened(settings, older).config()["environment"]["template"] == "auto"

    chat = with_template(make_tiny_model(tmp_path / "chat"))
    instruct = run_settings([*overrides, f"model.path={chat}"])
    older["model"] = instruct.resolved()["model"]
    with pytest.raises(InputError, match=r"environment\.template: there 'plain', asked for 'auto'"):
        opened(instruct, older)


def test_plan_takes_an_older_run(settings: RunSettings, model: Path) -> None:
    folder = opened(settings, without(settings.resolved(), "model.chat", "evaluation"))
    folder.config_file.write_text(yaml.safe_dump(without(settings.resolved(), "model.chat", "evaluation")))
    overrides = [*ASKED, f"model.path={model}", f"output_dir={settings.output_dir}"]
    assert make_plan(overrides).folder == folder


def test_every_reader_takes_an_older_run_s_prompts_as_plain(settings: RunSettings, tmp_path: Path) -> None:
    older = without(settings.resolved(), "model.chat", "evaluation", "environment.template")
    folder = opened(settings, settings.resolved())
    with_template(make_tiny_model(folder.model))
    folder.config_file.write_text(yaml.safe_dump(older))

    evaluated = settings_for(folder, [])
    assert evaluated.environment.template == "plain"
    assert evaluated.evaluation == settings.evaluation
    assert find_model(str(folder.path)).chat is None


def later(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "rollout": {**tree["rollout"], "telepathy": True}, "oracle": {"path": "delphi"}}


@pytest.mark.parametrize("read", [lambda folder: settings_for(folder, []), lambda f: find_model(str(f.path))])
def test_options_of_a_later_version_are_named_with_their_file(
    settings: RunSettings, read: Callable[[RunFolder], object]
) -> None:
    folder = opened(settings, settings.resolved())
    make_tiny_model(folder.model)
    folder.config_file.write_text(yaml.safe_dump(later(settings.resolved())))
    with pytest.raises(InputError) as refusal:
        read(folder)
    message = str(refusal.value)
    assert "rollout.telepathy: there is no such option" in message
    assert f"{folder.config_file} has options that this version of Whetstone does not know" in message


def test_a_misspelt_override_is_no_option_of_another_version(settings: RunSettings) -> None:
    folder = opened(settings, settings.resolved())
    make_tiny_model(folder.model)
    with pytest.raises(InputError) as refusal:
        settings_for(folder, ["rollout.telepathy=true"])
    assert "version" not in str(refusal.value)


def test_a_run_of_a_later_version_does_not_go_on(settings: RunSettings) -> None:
    with pytest.raises(InputError) as refusal:
        opened(settings, later(settings.resolved()))
    assert "rollout.telepathy: there True, and this run has no such option" in str(refusal.value)
    assert "oracle.path: there 'delphi', and this run has no such option" in str(refusal.value)


def test_a_configuration_that_cannot_be_read_stays_as_it_is() -> None:
    assert completed({"seed": 1}) == {"seed": 1}


def test_runs_of_two_versions_and_seeds_are_one_group(
    settings: RunSettings, model: Path, tmp_path: Path
) -> None:
    now = settings.resolved()
    for name, config in {"a": now, "b": {**without(now, "model.chat", "evaluation"), "seed": 1}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({**config, "run_name": name}))
    (group,) = read_groups([RunFolder(tmp_path / name) for name in "ab"])
    assert [run.seed for run in group.runs] == ["0", "1"]
