"""A run's prompt layout and sampling, from its configuration alone.

Only the needed sections are read, so a model works without the user's task or reward class.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.components import find
from contracts.conversations.chat_settings import AUTO, NONE, TOKENIZER, ChatForm, ChatSettings
from contracts.errors import InputError
from contracts.settings import build
from rollout_workers.settings import RolloutSettings
from services.config.evaluation_settings import EvaluationSettings
from services.data.tasks import TASKS
from services.data.tasks.base import SIDE_KEY
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.prompt_tokens import sides_of
from services.models.chat_template import form_of
from services.runs.folder import RunFolder

Config = Mapping[str, Any]
Reading = tuple[PromptLimit, ChatForm | None]
MIXTURE = "mixture"


def drawn_by(run: RunFolder) -> tuple[RolloutSettings, EvaluationSettings]:
    """Return a run's sampling settings."""
    config = run.config()
    rollout = build(RolloutSettings, _section(config, "rollout"), where=f"{run.config_file}: rollout")
    evaluation = build(
        EvaluationSettings, _section(config, "evaluation"), where=f"{run.config_file}: evaluation"
    )
    return rollout, evaluation


def reading_of(run: RunFolder, longest: int | None, tokenizer: Path) -> tuple[Reading, str]:
    """Return the limit and the chat template of a run's prompts, and a note.

    In a mixture, each part has a layout. If the layouts differ, the first part decides, and the note says so;
    otherwise the note is empty.

    Args:
        longest: a prompt's largest number of tokens; None: unlimited.
        tokenizer: the folder of the run's exported tokenizer, which has a template that was a file.
    """
    config = run.config()
    task = _section(config, "task")
    parts = _section(task, "parts") if task.get("name") == MIXTURE else {}
    if not parts:
        chat = _chat(_section(_section(config, "model"), "chat"), f"{run.config_file}: model.chat")
        side = sides_of(task.get(SIDE_KEY), None)["validation"]
        return (PromptLimit(longest, side), form_of(chat, _template(config), tokenizer)), ""
    read, unreadable = dict[str, Reading](), dict[str, str]()
    for name, part in parts.items():
        try:
            read[name] = _of_part(config, task, name, part, longest, tokenizer)
        except InputError as error:  # a template's file that is not here
            unreadable[name] = str(error)
    if not read:
        raise InputError(next(iter(unreadable.values())))
    first, *others = read
    if unreadable:
        name, why = next(iter(unreadable.items()))
        return read[first], f"{why}; prompts are read as by the part {first}, not {name}"
    if all(read[other] == read[first] for other in others):
        return read[first], ""
    return read[first], (
        f"the parts of this run's mixture read prompts differently; prompts are read as by its part {first}: "
        "--template and --system choose otherwise"
    )


def _of_part(
    config: Config, task: Config, name: str, part: Any, longest: int | None, tokenizer: Path
) -> Reading:
    """Return the prompt layout of a mixture's part, as in `RunSettings.parts`."""
    section = part if isinstance(part, Mapping) else {"task": part}
    of_run, of_part = _section(_section(config, "model"), "chat"), _section(section, "chat")
    chat = _chat(of_run, f"task.parts.{name}.chat", of_part)
    template = _template(config)
    if template == AUTO and not chat.is_explicit:
        template = "plain" if chat.template == NONE or _is_raw(str(section.get("task"))) else AUTO
    side = sides_of(section.get(SIDE_KEY) or task.get(SIDE_KEY), None)["validation"]
    return PromptLimit(longest, side), form_of(chat, template, tokenizer)


def _chat(of_run: Config, where: str, of_part: Config | None = None) -> ChatSettings:
    """Return chat settings; the exported tokenizer has a run's template that was a file."""
    run = build(ChatSettings, dict(of_run), where=where)
    options = {**of_run, "template": TOKENIZER} if run.is_explicit else dict(of_run)
    return build(ChatSettings, {**options, **(of_part or {})}, where=where)


def _template(config: Config) -> str:
    return str(_section(config, "environment").get("template", "plain"))


def _is_raw(task: str) -> bool:
    """Return whether a task's prompts are plain texts; False for a task that is missing here."""
    try:
        return bool(getattr(find("task", task, TASKS), "raw_text", False))
    except InputError:
        return False


def _section(config: Config, name: str) -> Config:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
