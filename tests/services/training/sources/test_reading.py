"""One reading of prompts: train, evaluate, plan, generate, chat and annotate get the same tokens."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.conversations.chat import Chat
from contracts.errors import InputError
from contracts.rollout import Prompt, Sampling
from learner.learner import Learner
from learner.settings import LearnerSettings
from services import cli
from services.commands import generate
from services.config import compose
from services.config.settings import RunSettings
from services.data.tokens.prompt_tokens import PromptTokens
from services.inference.chat.prompts import layout_of
from services.inference.evaluation.configuration import settings_for
from services.inference.generation.chat_options import with_chosen_chat
from services.inference.generation.run_model import find_model
from services.runs.folder import RunFolder
from services.studies.annotation import annotate
from services.studies.annotation.settings import settings_from as annotation_of
from services.training.loop.evaluations.held_out import held_out_leases
from services.training.sources.prompts import prompts_of
from services.training.sources.reading import reading_of
from services.training.train.launch import model_of
from tests.chat_templates import DEFAULT_SYSTEM, TEMPLATES, make_chat_model

ASKED = [{"role": "user", "content": "What is three and four ?"}]
TALK = [
    *ASKED,
    {"role": "assistant", "content": "It is seven."},
    {"role": "user", "content": "And then ?"},
]


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return make_chat_model(folder, TEMPLATES[request.param])


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("one"), DEFAULT_SYSTEM)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows: list[Any] = [TALK, ASKED, ASKED[0]["content"], *([ASKED] * 17)]
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    return tmp_path


def run_of(model: Path, data: Path, *overrides: str) -> RunSettings:
    return compose.run_settings(
        [f"model.path={model}", "task=prompts", f"task.data_files={data}", "reward=length", *overrides]
    )


def as_template(model: Path, talk: list[dict[str, str]], **options: Any) -> tuple[int, ...]:
    from transformers import AutoTokenizer

    its = AutoTokenizer.from_pretrained(model)
    ids = its.apply_chat_template(talk, add_generation_prompt=True, return_dict=False, **options)
    return tuple(ids)


def test_everybody_reads_a_prompt_as_the_template_writes_it(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [as_template(model, TALK), as_template(model, ASKED), as_template(model, ASKED)]
    run = run_of(model, data)
    prompts = prompts_of(run.task, run.task_name, "train")[:3]
    to_tokens = reading_of(run, "train").of_part[""]
    assert [to_tokens(prompt) for prompt in prompts] == expected  # train
    assert [lease.tokens for lease in held_out_leases(run, "validation")[:3]] == expected  # evaluate

    run_model = find_model(str(model))
    arguments = argparse.Namespace(n=1, seed=0)
    leases, _ = generate._leases(run_model, prompts, Sampling(max_tokens=4), arguments)
    assert [lease.tokens for lease in leases] == expected  # generate

    layout = layout_of({}, to_tokens._tokenizer, run_model.chat)
    assert [tuple(layout.tokens(talk)) for talk in (TALK, ASKED)] == expected[:2]  # chat

    rows = [{"prompt": TALK, "response": "x"}, {"prompt": ASKED, "response": "x"}] * 10
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [
        f"data.files={tmp_path / 'rows.jsonl'}",
        "reward=length",
        f"reference={model}",
        "output=there",
    ]
    settings = annotation_of([*overrides, "rollout.max_tokens=4"])
    read = annotate._tokens(annotate.as_read_here(str(model), settings), settings)
    responses = annotate.read_responses(settings.data, None, "train").rows
    assert [read(row.prompt, row.response).prompt for row in responses[:2]] == expected[:2]  # annotate

    assert cli.main(["plan", "--json", *arguments_of(model, data)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert tuple(plan["prompt_token_ids"]) == expected[0]
    assert plan["prompt_as_read"] == Chat(to_tokens._tokenizer, run_model.chat).text(TALK)  # type: ignore[arg-type]
    assert [(column["name"], column["read_as"]) for column in plan["columns"][""]] == [("prompt", "prompt")]


def arguments_of(model: Path, data: Path) -> list[str]:
    return [f"model.path={model}", "task=prompts", f"task.data_files={data}", "reward=length"]


def test_settings_reach_the_prompt(one: Path, data: Path, tmp_path: Path) -> None:
    template = "{{ mood }}{% for m in messages %} {{ m.content }}{% endfor %}"
    (tmp_path / "own.jinja").write_text(template)
    run = run_of(one, data, f"model.chat.template={tmp_path / 'own.jinja'}", "model.chat.options.mood=merry")
    to_tokens = reading_of(run, "train").of_part[""]
    prompt = prompts_of(run.task, run.task_name, "train")[0]
    assert to_tokens.text(to_tokens(prompt)) == "merry What is three and four ? It is seven. And then ?"
    run = run_of(one, data, "model.chat.system=Be brief.")
    assert "system\nBe brief.<|stop|>" in to_tokens.text(reading_of(run, "test")(prompt))


def test_plain_text_is_read_where_it_is_meant(one: Path, data: Path) -> None:
    """By option, or as a task's prompts are for a model that continues texts."""
    run = run_of(one, data, "model.chat.template=none")
    to_tokens = reading_of(run, "train").of_part[""]
    prompts = prompts_of(run.task, run.task_name, "train")
    text = "What is three and four ?\nIt is seven.\nAnd then ?"
    assert to_tokens.text(to_tokens(prompts[0])) == f"<bos>{text}"  # a message a line, one beginning
    raw = compose.run_settings([f"model.path={one}", "task=increasing_numbers"])
    assert reading_of(raw, "train").of_part[""].chat is None
    assert raw.environment.template == "plain"
    settings = compose.run_settings(
        [f"model.path={one}", "task=increasing_numbers", "environment.template=chat"]
    )
    assert reading_of(settings, "train").of_part[""].chat is not None
    again = RunSettings.model_validate(settings.resolved())
    assert again.resolved() == settings.resolved()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["environment.template=plain", "model.chat.template=tokenizer"], "contradict each other"),
        (["model.chat.template=none", "model.chat.system=Hi."], "plain texts have neither"),
        (["model.chat.options.tools=[1]"], "'tools' is set by the run itself"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    one: Path, data: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_of(one, data, *overrides)


def test_what_a_template_refuses_is_told_before_the_start(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_chat_model(tmp_path / "model", TEMPLATES["refuses_system"])
    assert cli.main(["plan", *arguments_of(model, data), "model.chat.system=Hi."]) == 2
    printed = capsys.readouterr().err
    assert "the chat template refuses a conversation of system, user" in printed
    assert "System role not supported" in printed and "leave out model.chat.system" in printed
    bare = make_chat_model(tmp_path / "bare", None)
    for overrides in (
        ["model.chat.system=Hi."],
        ["environment.template=chat"],
        ["model.chat.template=tokenizer"],
    ):
        assert cli.main(["plan", *arguments_of(bare, data), *overrides]) == 2
        assert "no chat template" in (printed := capsys.readouterr().err) or "has none" in printed


def test_the_plan_shows_the_prompt_and_warns_of_ends_and_dates(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_chat_model(tmp_path / "model", TEMPLATES["dated"])
    assert cli.main(["plan", *arguments_of(model, data)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The first prompt as the model reads it" in shown
    assert "<|start_header|>user<|end_header|> And then ?<|eot|>" in shown
    assert "ends an answer with '<|eot|>', but the model writes on after it" in shown
    assert "model.chat.date=YYYY-MM-DD keeps one date" in shown


def test_a_models_own_options_on_the_command_line(one: Path, tmp_path: Path) -> None:
    def chosen(**options: str) -> Any:
        named = {"template": None, "system": None, "template_options": None, **options}
        return with_chosen_chat(find_model(str(one)), argparse.Namespace(**named)).chat

    assert chosen(template="none") is None
    assert chosen(system="Hi.").system == "Hi."
    assert chosen(template_options='{"mood": 1}').options == {"mood": 1}
    with pytest.raises(InputError, match="--template-options: got 'x'"):
        chosen(template_options="x")


def test_workers_get_the_template_with_an_environment(one: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    run = compose.run_settings(
        [f"model.path={one}", "task=increasing_numbers", f"model.chat.template={tmp_path / 'own.jinja'}"]
    )
    workers = model_of(run.model, run.algorithm, run.environment)
    assert workers.chat is not None and workers.chat.template == "{{ messages }}"
    assert workers.environment is not None and workers.environment.template == "chat"


def test_a_run_reads_prompts_as_it_was_trained_to(one: Path, data: Path, tmp_path: Path) -> None:
    """Evaluate and generate take the run's settings; a template from a file is in the exported model."""
    from transformers import AutoTokenizer

    template = tmp_path / "own.jinja"
    template.write_text("{{ bos_token }}{{ messages[0].content }}: {{ messages[-1].content }}")
    run = run_of(one, data, f"model.chat.template={template}", "model.chat.system=Be brief.")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config_file.write_text(yaml.safe_dump(json.loads(json.dumps(run.resolved(), default=str))))
    learner = Learner(
        run.model.model_copy(update={"chat": run.model.chat.with_text()}),
        run.algorithm,
        LearnerSettings(device="cpu"),
        seed=0,
        iterations=1,
        sampling=Sampling(max_tokens=4),
    )
    template.unlink()
    learner.export(str(folder.model))
    tokenizer, prompt = AutoTokenizer.from_pretrained(folder.model), Prompt("0", "And then ?")

    evaluated = reading_of(settings_for(folder, []), "test").of_part[""]
    run_model = find_model(str(folder.path))
    assert run_model.chat is not None
    generated = PromptTokens(tokenizer, chat=Chat(tokenizer, run_model.chat))
    for to_tokens in (evaluated, generated):
        assert to_tokens.text(to_tokens(prompt)) == "<bos>Be brief.: And then ?"
