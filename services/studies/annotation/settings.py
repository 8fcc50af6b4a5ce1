"""Settings of `whetstone annotate`, typed from the command line."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, PrivateAttr, field_validator, model_validator

from contracts.conversations.chat_settings import ChatSettings
from contracts.errors import InputError
from contracts.settings import Settings, build
from learner.settings import LearnerSettings
from reward_servers.deadlines import check_deadlines
from reward_servers.part_checks import check_parts
from reward_servers.settings import Part, RewardServersSettings, parts
from rollout_workers.engines.traits import traits_of
from rollout_workers.settings import RolloutSettings
from services.config.value_stage import ValueStage
from services.data.annotated.responses import ResponseData
from services.data.annotated.task import told
from services.data.tasks.base import SIDE_KEY, Side, Split, Task, asked_for
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.prompt_tokens import sides_of

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

OF_EXPERIMENT = {
    "rollout": ("engine", "dtype", "max_prompt_tokens", "max_tokens", "stop"),
    "learner": ("autocast",),
}

HELP = """whetstone annotate KEY=VALUE …: score the responses of a data set, to learn from them alone

  whetstone annotate data.files=FOLDER reward=[{{name: learned_reward, model: FOLDER}}] output=annotated
  whetstone annotate task=NAME reward=rouge reference=RUN_OR_MODEL value=true output=annotated
  whetstone annotate experiment=NAME reward.LABEL.model=FOLDER     its task, rewards, lengths and values
  whetstone annotate --pass-rate --help                            leave out prompts that teach nothing

FOLDER has train, validation and test as .jsonl, .json, .csv or .parquet, with columns prompt and response,
or prompt, chosen and rejected. The same command continues an annotation that was stopped.

  reward      score every response, a column for each reward
  reference   compute a frozen model's log-probabilities of every response
  value=true  learn from the validation prompts what reward the reference earns with every prompt

Keys (docs/annotate.md has them all):
{keys}"""


class AnnotateSettings(Settings):
    """All settings of an annotation.

    Example: `AnnotateSettings(data=ResponseData(files="hh"), reward=parts("length"), output="annotated")`
    """

    output: str  # folder of the annotated data
    overwrite: bool = False  # redo stages with changed settings, and keep the others
    retry_failed: bool = False  # score again those parts that have rows without a score
    data: ResponseData = ResponseData()  # files or hub data set with the responses
    # Task whose responses are annotated, in place of `data`
    task: Annotated[Task | None, PlainValidator(partial(asked_for, known=(SIDE_KEY,)))] = None
    split: Split = "train"  # split whose responses are annotated
    reward: tuple[Part, ...] = ()  # one, or a list; each gets a column
    reference: str | None = None  # a model's folder or hub name, or a finished run's folder
    value: ValueStage | None = None  # how values are learned; None: no values
    chat: ChatSettings = ChatSettings()  # how the reference reads conversations; a run's own, unless given
    executor: Literal["ray", "here"] = "ray"  # here: in this process, one part after another
    num_in_flight: int = Field(default=4, ge=1)  # parts that wait for the reward servers at a time
    rows_per_part: int = Field(default=64, ge=1)  # rows saved at once; a kill loses the parts in flight
    rollout: RolloutSettings = RolloutSettings(max_tokens=128)  # cut of texts, sampling of generations
    learner: LearnerSettings = LearnerSettings()  # how the reference model computes
    reward_servers: RewardServersSettings = RewardServersSettings()

    _given_task: dict[str, Any] | None = PrivateAttr(default=None)  # the task's name and options
    _side: Side = PrivateAttr(default="left")  # where long prompts are cut

    @model_validator(mode="wrap")
    @classmethod
    def _keep_the_task(cls, values: Any, validate: Any) -> "AnnotateSettings":
        task = values.get("task") if isinstance(values, Mapping) else None
        if not isinstance(task, Mapping):
            settings: AnnotateSettings = validate(values)
            settings._side = settings.data.truncation_side
            return settings
        options = {key: value for key, value in task.items() if key != SIDE_KEY}
        settings = validate({**values, "task": options})
        settings._given_task = dict(task)
        settings._side = sides_of(task.get(SIDE_KEY), settings.task)[settings.split]
        return settings

    @field_validator("reward", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> tuple[Part, ...]:
        rewards = parts(value, "reward")
        check_parts("reward", rewards)
        return rewards

    @property
    def prompt_limit(self) -> PromptLimit:
        """Return the limit of a prompt's length, with the side on which a longer one is cut."""
        return PromptLimit(self.rollout.max_prompt_tokens, self._side)

    @property
    def held_out_task(self) -> dict[str, Any]:
        """The task for these rows' validation and test prompts, in the form of `task=`."""
        return told(self._given_task, self.data)

    @field_validator("value", mode="before")
    @classmethod
    def _asked_for(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        has_data = self.data.files is not None or bool(self.data.path)
        if (self.task is None) != has_data:
            raise ValueError(
                "expected data.files=FOLDER or FILE, or data.path=HUB_NAME, or task=NAME: one of them"
            )
        if not self.reward and self.reference is None:
            raise ValueError("expected reward=… to score with, or reference=MODEL; got neither")
        if self.value is not None and not (self.reward and self.reference):
            raise ValueError(
                "value=true learns the rewards of the reference model's answers, so it needs reward=… and "
                "reference=MODEL"
            )
        if self.retry_failed and not self.reward:
            raise ValueError("retry_failed=true scores rows again: expected reward=… with it, got none")
        self._check_beams()
        self.reward_servers.check_labels(part.label for part in self.reward)
        check_deadlines(self.reward, self.reward_servers)
        return self

    def _check_beams(self) -> None:
        """Refuse beam search if the reference model can't do it."""
        if self.value is None or self.value.num_beams == 1:
            return
        where = f"value.num_beams={self.value.num_beams}"
        traits = traits_of(self.rollout.engine)
        if not traits.searches_beams:
            raise ValueError(
                f"{where}: {traits.title} has no beam search, but rollout.engine={self.rollout.engine}; "
                "expected rollout.engine=transformers"
            )
        if self.rollout.stop:
            raise ValueError(f"{where}: beam search does not support rollout.stop; expected rollout.stop=[]")


def settings_from(overrides: Sequence[str]) -> AnnotateSettings:
    """Return the settings of `KEY=VALUE …`.

    Raises:
        InputError: a key is unknown, missing, or of the wrong type or range.
    """
    from services.config.override_words import parse

    parsed = [parse(text) for text in overrides]
    tree = _of_experiment(parsed)
    if not any(_asks_for_value(override) for override in parsed):
        tree.pop("value", None)
    typed = [override for override in parsed if override.key_or_group != "experiment"]
    return build(AnnotateSettings, with_overrides(tree, typed), where="")


def with_overrides(tree: "DictConfig", parsed: Sequence["Override"]) -> dict[str, Any]:
    """Return the tree's keys as plain data, with the command line's values.

    Raises:
        InputError: an override has several values, or a key or its value is missing.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from services.config.compose import refuse_missing, set_in_list

    for override in parsed:
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override():
            raise InputError(f"{override.input_line}: expected one value; a list is written {key}=[…]")
        if set_in_list(tree, override):
            continue
        if key in ("task", "reward") and isinstance(value, str):
            value = {"name": value}  # a mapping can take options
        if key == "value" and isinstance(value, bool):
            value = {} if value else None
        try:
            OmegaConf.update(tree, key, value, merge=key not in ("task", "reward"), force_add=True)
        except OmegaConfBaseException as error:
            raise InputError(f"{override.input_line}: {str(error).strip().splitlines()[0]}") from None
    refuse_missing(tree)
    plain: dict[str, Any] = OmegaConf.to_container(tree, resolve=True)  # type: ignore[assignment]
    return plain


def _of_experiment(parsed: Sequence["Override"]) -> "DictConfig":
    """Read an experiment's keys about responses: task, rewards, lengths, value stage and output folder.

    Return {} without an experiment.
    """
    from omegaconf import OmegaConf

    from services.config.compose import experiment

    name = next((str(override.value()) for override in parsed if override.key_or_group == "experiment"), None)
    if name is None:
        return OmegaConf.create({})
    whole = experiment(name)
    kept = {key: whole[key] for key in ("task", "reward") if key in whole}
    if any(override.key_or_group.startswith("data.") for override in parsed):
        kept.pop("task", None)  # the rows are the user's
    for group, names in OF_EXPERIMENT.items():
        if options := {name: whole[group][name] for name in names if name in whole.get(group, {})}:
            kept[group] = options
    if chat := whole.get("model", {}).get("chat"):
        kept["chat"] = chat
    data = whole.get("data")
    if data is not None:
        kept["output"] = data if isinstance(data, str) else data.folder
        if not isinstance(data, str) and data.get("value") is not None:
            kept["value"] = data.value
    return OmegaConf.create(kept)


def _asks_for_value(override: "Override") -> bool:
    key = str(override.key_or_group)
    return key.startswith("value.") or (key == "value" and bool(override.value()))


def print_help() -> int:
    """Print the help of `whetstone annotate`."""
    keys = [f"  {name}" for name in AnnotateSettings.model_fields if name not in ("data", "task", "value")]
    for group, settings in (("data", ResponseData), ("value", ValueStage)):
        keys += [f"  {group}.{name}" for name in settings.model_fields]
    lines = ["".join(f"{key:<28}" for key in keys[start : start + 4]) for start in range(0, len(keys), 4)]
    print(HELP.format(keys="\n".join(map(str.rstrip, lines))))
    return 0
