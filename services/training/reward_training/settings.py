"""Settings of `whetstone train-reward`, from the presets in conf/reward_model and the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator, model_validator

from contracts.errors import InputError, did_you_mean
from contracts.settings import Settings, build
from learner.reward_models.settings import RewardTraining
from services.data.tasks.base import Task, asked_for
from services.training.reward_training.data import Objective, RewardData

GROUP = "reward_model"  # folder of presets in conf/
HELP = """whetstone train-reward KEY=VALUE …: train a classifier or a model of preferences, to be a reward

  whetstone train-reward model=distilbert-base-uncased data.files=FOLDER data.label_names=[negative,positive]
  whetstone train-reward preset=preferences model=gpt2 data.files=FOLDER       rows with chosen and rejected
  whetstone train-reward preset=daily_dialog_intent task.data_files=FOLDER     RL4LMs' intent classifier

model is a folder or a hub name: a classifier, an encoder, or a language model, which gets a fresh head.
FOLDER has train, validation and test as .jsonl, .json, .csv or .parquet, with columns text and label;
prompt, response and label; or chosen and rejected. It all runs in one process, without Ray.

Presets: {presets}
Keys (docs/train-reward.md has them all):
{keys}"""


class TrainRewardSettings(RewardTraining):
    """Settings of one training of a reward model.

    Example: `TrainRewardSettings(model="gpt2", data=RewardData(files="hh_rlhf"), num_epochs=1)`
    """

    model: str
    output: str = "reward_model"  # folder to write
    overwrite: bool = False  # replace an earlier training in it
    objective: Objective | None = None  # None: decide by the columns
    data: RewardData = RewardData()
    task: Annotated[Task | None, PlainValidator(asked_for)] = (
        None  # its prompts and references, instead of rows
    )

    @model_validator(mode="after")
    def _some_data(self) -> "TrainRewardSettings":
        has_data = self.data.files is not None or bool(self.data.path)
        if self.task is None and not has_data:
            raise ValueError("data.files=FOLDER or FILE is required; or data.path=HUB_NAME, or task=NAME")
        if self.task is not None and (has_data or self.objective == "pairs"):
            raise ValueError("a task brings its own data, as labels: task.data_files=FOLDER, no data.files")
        return self

    def resolved(self) -> dict[str, Any]:
        """Return the settings as plain data, for the results."""
        task = self.task.model_dump(mode="json") if isinstance(self.task, Settings) else None
        return self.model_dump(mode="json", exclude={"task"}) | {"task": task}


def settings_from(overrides: Sequence[str]) -> TrainRewardSettings:
    """Build the settings from `KEY=VALUE …`, over a preset if one is named.

    Raises:
        InputError: an override is unknown, or of the wrong type or range; or a setting is missing.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from services.config.override_words import parse

    tree, parsed = OmegaConf.create({}), [parse(text) for text in overrides]
    for override in parsed:
        if override.key_or_group == "preset":
            tree = OmegaConf.load(_preset(str(override.value())))
    for override in parsed:
        key, value = override.key_or_group, override.value()
        if override.is_sweep_override():
            raise InputError(f"{override.input_line}: expected one value; a list is written {key}=[…]")
        if key == "task" and isinstance(value, str):
            value = {"name": value}
        try:
            if key != "preset":
                OmegaConf.update(tree, key, value, merge=key != "task", force_add=True)
        except OmegaConfBaseException as error:
            raise InputError(f"{override.input_line}: {str(error).strip().splitlines()[0]}") from None
    plain: dict[str, Any] = OmegaConf.to_container(tree, resolve=True)  # type: ignore[assignment]
    return build(TrainRewardSettings, plain, where="")


def print_help() -> int:
    from services.config.compose import choices_of

    keys = [f"  {name}" for name in TrainRewardSettings.model_fields if name not in ("data", "task")]
    keys += [f"  data.{name}" for name in RewardData.model_fields]
    lines = ["".join(f"{key:<26}" for key in keys[start : start + 4]) for start in range(0, len(keys), 4)]
    print(HELP.format(presets=", ".join(choices_of(GROUP)), keys="\n".join(map(str.rstrip, lines))))
    return 0


def _preset(name: str) -> Path:
    from services.config.compose import CONF, choices_of

    if name not in (known := choices_of(GROUP)):
        raise InputError(f"preset={name}: there is no such preset{did_you_mean(name, known)}")
    return CONF / GROUP / f"{name}.yaml"
