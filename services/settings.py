"""Everything a run is told, typed once at the door. YAML and the command line become this and nothing else.

After this no one sees a configuration tree: each part gets its own settings.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, PrivateAttr, ValidationInfo, field_validator, model_validator

from contracts.errors import InputError, there_are
from contracts.rollout import Sampling
from contracts.settings import Settings
from learner.algorithms.base import Algorithm, Masks, learns_from
from learner.settings import LearnerSettings, ModelSettings
from reward_servers.rewards import REWARDS
from reward_servers.server import check_parts
from reward_servers.settings import Part, RewardServersSettings, ServerSettings, parts
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.single_turn import SingleTurn
from rollout_workers.settings import RolloutSettings
from services.best import Criterion
from services.cluster_settings import ClusterSettings
from services.component_settings import TABLES, component, name_and_options
from services.data_settings import DataSettings
from services.evaluation_settings import DRAWN_AS, EvaluationSettings
from services.judging import Judging
from services.measures import Measures
from services.prompt_tokens import PromptLimit, shown_sides, sides_of
from services.settings_rules import check_algorithm, check_engine, check_environment
from services.tasks.base import SIDE_KEY, Side, Split, Task
from services.tracking import TrackingSettings


class RunSettings(Settings):
    """One run. `algorithm`, `task` and `environment` are given as names with options, and are the finished
    components here.

    Rewards and metrics that are not given are the task's own. A reward may be left out, or be `[]`, where the
    environment rewards by itself; with both, they are added.
    """

    algorithm: Annotated[Algorithm, PlainValidator(component)]
    task: Annotated[Task, PlainValidator(component)]
    environment: Annotated[EnvironmentSettings, PlainValidator(component)] = Field(
        default="single_turn", validate_default=True
    )
    model: ModelSettings
    data: DataSettings | None = None  # for algorithms that learn from data; a folder alone will do
    reward: tuple[Part, ...] = Field(default=(), validate_default=True)
    metrics: tuple[Part, ...] = Field(default=(), validate_default=True)
    measures: Annotated[Measures, PlainValidator(Measures)] = Measures()  # of each iteration's rollouts

    iterations: int = Field(default=100, ge=1)
    seed: int = Field(default=0, ge=0)
    run_name: str  # a folder in output_dir; <task>-<algorithm>-seed<seed> unless given
    output_dir: str = "runs"
    evaluate_every: int = Field(default=10, ge=0)  # iterations; 0: only before the first and after the last
    save_every: int = Field(default=10, ge=0)  # iterations; 0: only after the last
    keep_checkpoints: int = Field(default=2, ge=1)
    keep_best: str | None = None  # and the best one, by a metric of validation: val/reward/mean, min:val/…
    mirror: str | None = None  # s3://…, gs://…, file://…: where the run is copied to, and restored from
    resume: Literal["auto", "never"] = "auto"

    rollout: RolloutSettings = RolloutSettings()
    learner: LearnerSettings = LearnerSettings()
    reward_servers: RewardServersSettings = RewardServersSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    cluster: ClusterSettings = ClusterSettings()

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)  # names and options of the components
    _sides: dict[Split, Side] = PrivateAttr(default_factory=dict)  # where long prompts are cut

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_run(cls, given: Any, validate: Any) -> "RunSettings":
        if not isinstance(given, Mapping):
            return validate(given)  # type: ignore[no-any-return]
        given = {"environment": "single_turn", **given}
        named = {kind: name_and_options(given[kind], kind) for kind in TABLES if kind in given}
        side = None
        if "task" in named:  # every task has this option, and no task's class needs to know it
            name, options = named["task"]
            side = options.pop(SIDE_KEY, None)
            given = {**given, "task": {"name": name, **options}}
        if given.get("run_name") is None:
            labels = [named[kind][0].rpartition(":")[2] for kind in ("task", "algorithm") if kind in named]
            given = {**given, "run_name": "-".join([*labels, f"seed{given.get('seed', 0)}"])}
        settings: RunSettings = validate(given)
        settings._given = {kind: {"name": name, **options} for kind, (name, options) in named.items()}
        settings._sides = sides_of(side, settings.task)
        return settings

    @field_validator("keep_best")
    @classmethod
    def _is_a_criterion(cls, value: str | None) -> str | None:
        if value is not None:
            Criterion.of(value)
        return value

    @field_validator("output_dir")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if "://" in value:
            raise ValueError(f"a run works in a folder; expected output_dir=FOLDER and mirror={value}")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _folder_alone(cls, value: Any) -> Any:
        return {"folder": value} if isinstance(value, str) else value

    @field_validator("reward", mode="before")
    @classmethod
    def _reward_of_the_task(cls, value: Any, info: ValidationInfo) -> tuple[Part, ...]:
        task = info.data.get("task")  # absent: that is refused by itself
        default = getattr(task, "default_reward", None)
        if isinstance(value, Mapping) and "name" not in value and default:
            value = {"name": default, **value}
        environment = info.data.get("environment")
        asked_for_none = environment and environment.rewards_itself and value == []
        found = parts(value, "reward") or (() if asked_for_none else parts(default, "reward"))
        if not found and task and environment and not environment.rewards_itself:
            raise InputError(
                "reward: this task has none of its own, so one is needed, or an environment that rewards by "
                f"itself. {_choices('reward', REWARDS)}"
            )
        check_parts("reward", found)
        return found

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_of_the_task(cls, value: Any, info: ValidationInfo) -> tuple[Part, ...]:
        task = info.data.get("task")
        asked = value or value == []  # an empty list asks for none
        found = parts(value if asked else getattr(task, "default_metrics", ()), "metrics")
        check_parts("metric", found)
        return found

    @model_validator(mode="after")
    def _parts_fit(self) -> "RunSettings":
        self.reward_servers.check_labels(part.label for part in (*self.reward, *self.metrics))
        sampling = self.sampling(evaluating=True)
        if sampling.min_tokens > sampling.max_tokens:
            raise ValueError(
                f"evaluation: min_tokens={sampling.min_tokens} exceeds max_tokens={sampling.max_tokens}; "
                f"what evaluation leaves open is taken from rollout"
            )
        check_algorithm(self)
        check_environment(self)
        check_engine(self)
        return self

    @property
    def group_size(self) -> int:
        """Rollouts of each prompt: what was asked for, or what the algorithm needs."""
        return self.rollout.group_size or int(getattr(self.algorithm, "default_group_size", 1))

    @property
    def algorithm_name(self) -> str:
        return str(self._given["algorithm"]["name"])

    @property
    def task_name(self) -> str:
        return str(self._given["task"]["name"])

    @property
    def environment_name(self) -> str:
        return str(self._given["environment"]["name"])

    @property
    def plays(self) -> bool:
        """Whether there is an environment to speak of: more than one prompt, one answer."""
        return not isinstance(self.environment, SingleTurn)

    @property
    def plays_experts(self) -> bool:
        """Whether training learns from an expert's play: imitation of references, in an environment."""
        return self.plays and learns_from(self.algorithm) == "references"

    @property
    def demonstrates(self) -> bool:
        """Tell whether training learns from a task's references, and the policy writes nothing."""
        return learns_from(self.algorithm) == "references" and not self.plays

    @property
    def judging(self) -> Judging:
        """What reward servers see of a rollout, in training and in evaluation."""
        return Judging(
            at=self.environment.reward_at if self.reward else "never",
            environment=self.environment_name if self.plays else None,
            rewards_itself=self.environment.rewards_itself,
        )

    def prompt_limit(self, split: Split) -> PromptLimit:
        """Return how long a prompt of this split may be, and on which side a longer one is cut."""
        side, of_evaluation = self._sides[split], self.evaluation.max_prompt_tokens
        if split != "train" and of_evaluation is not None:
            return PromptLimit(of_evaluation, side, "evaluation.max_prompt_tokens")
        return PromptLimit(self.rollout.max_prompt_tokens, side)

    def sampling(self, evaluating: bool = False) -> Sampling:
        """How the model draws tokens: as `rollout` says, or with what `evaluation` puts in its place.

        Examples by chance are for training alone. That somebody else plays, services/baselines.py says.
        """
        chosen: dict[str, Any] = {name: getattr(self.rollout, name) for name in DRAWN_AS}
        chosen["masked"] = isinstance(self.algorithm, Masks)
        chosen["example_rate"] = self.environment.example_rate
        if evaluating:
            chosen |= {"num_beams": 1, "length_penalty": 1.0, "repetition_penalty": 1.0}
            chosen |= {"masked": False, "example_rate": 0.0}
            own = self.evaluation.model_dump(include=set(chosen), exclude_none=True)
            chosen |= own
        return Sampling(**chosen)

    def resolved(self) -> dict[str, Any]:
        """All of it as plain data, defaults included: `build(RunSettings, resolved, "")` gives it back."""
        plain = {name: _plain(getattr(self, name)) for name in type(self).model_fields}
        for kind in TABLES:
            component = getattr(self, kind)
            options = _plain(component) if isinstance(component, Settings) else self._given[kind]
            plain[kind] = {"name": self._given[kind]["name"], **options}
        plain["task"][SIDE_KEY] = shown_sides(self._sides)
        for kind in ("reward", "metrics"):
            plain[kind] = [_flat(part) for part in getattr(self, kind)]
        plain["measures"] = list(self.measures.entries)
        return plain


def _plain(value: Any) -> Any:
    if not isinstance(value, Settings):
        return value
    if isinstance(value, ServerSettings):  # fixed replicas and bounds exclude each other: as it was given
        return value.model_dump(mode="json", exclude_unset=True)
    return value.model_dump(mode="json") | {
        name: _plain(inner) for name, inner in value if isinstance(inner, Settings)
    }


def _flat(part: Part) -> dict[str, Any]:
    return {**part.model_dump(exclude={"options"}), **part.options}


def _choices(key: str, table: Mapping[str, str]) -> str:
    return f"Give {key}=NAME; {there_are(sorted(table))}."
