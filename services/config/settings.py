"""All settings of a run, typed once: YAML and the command line become `RunSettings`.

Later code never reads a configuration tree. Each part gets only its own settings.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator

from contracts.conversations.chat_settings import NONE, ChatSettings
from contracts.errors import InputError, there_are
from contracts.objects import own_name
from contracts.settings import Settings, build
from reward_servers.by_part import ByPart
from reward_servers.deadlines import check_deadlines
from reward_servers.graders import REWARDS
from reward_servers.part_checks import check_parts
from reward_servers.settings import Part, ServerSettings, parts
from rollout_workers.environments.base import EnvironmentSettings
from services.config.component_settings import TABLES, name_and_options
from services.config.curriculum_settings import typed
from services.config.evaluation_settings import NEVER
from services.config.mixture_rules import (
    check_answered_once,
    check_generated,
    graders_of_parts,
    with_defaults,
)
from services.config.run_parts import RunParts
from services.config.settings_rules import (
    check_answers,
    check_corrections,
    check_curriculum,
    check_decoding,
    check_early_scores,
    check_endless,
    check_expert,
    check_group_size,
    check_marks,
    check_own_reward,
    check_passing,
    check_patience,
    check_reference,
    check_refills,
    check_split_engine,
    check_target_return,
    check_template,
)
from services.data.tasks.base import SIDE_KEY
from services.data.tasks.mixture import TaskMixture, TaskPart
from services.data.tokens.prompt_tokens import shown_sides, sides_of
from services.runs.best import Criterion
from services.runs.stopping.rules import check_evaluated


class RunSettings(RunParts):
    """Settings of one run. `algorithm`, `task` and `environment` are built from names with options.

    The task has defaults for reward and metrics. If the environment rewards by itself, or the algorithm
    learns only from texts, `reward` may be left out or be `[]`. Otherwise `reward` adds to the environment's
    rewards.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_run(cls, config: Any, validate: Any) -> "RunSettings":
        if not isinstance(config, Mapping):
            return validate(config)  # type: ignore[no-any-return]
        config = {"environment": "single_turn", **config}
        named = {kind: name_and_options(config[kind], kind) for kind in TABLES if kind in config}
        side = None
        if "task" in named:  # every task has this option, but no task's class declares it
            name, options = named["task"]
            side = options.pop(SIDE_KEY, None)
            if name == "mixture":
                options = with_defaults(options, {**config, SIDE_KEY: side})
            config = {**config, "task": {"name": name, **options}}
        if config.get("run_name") is None:
            labels = [own_name(named[kind][0]) for kind in ("task", "algorithm") if kind in named]
            config = {**config, "run_name": "-".join([*labels, f"seed{config.get('seed', 0)}"])}
        settings: RunSettings = validate(config)
        settings = settings.model_copy(
            update=_template(settings.model.chat, settings.environment, settings.task)
        )
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
            raise ValueError(f"a run needs a local folder; expected output_dir=FOLDER and mirror={value}")
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _folder_alone(cls, value: Any) -> Any:
        return {"folder": value} if isinstance(value, str) else value

    @field_validator("curriculum", mode="before")
    @classmethod
    def _is_typed(cls, value: Any) -> Any:
        return typed(value)

    @field_validator("reward", mode="before")
    @classmethod
    def _reward_of_the_task(cls, value: Any, info: ValidationInfo) -> tuple[Part, ...]:
        task = info.data.get("task")  # if absent, its own validator has raised an error
        if isinstance(task, TaskMixture):
            return graders_of_parts("reward", task, value, info.data.get("algorithm"))
        default = getattr(task, "default_reward", None)
        if isinstance(value, Mapping) and "name" not in value and default:
            value = {"name": default, **value}
        environment, algorithm = info.data.get("environment"), info.data.get("algorithm")
        rewards_itself = bool(environment and environment.rewards_itself)
        can_do_without = rewards_itself or bool(algorithm and not algorithm.traits.earns)
        asked_for_none = value == []
        if asked_for_none and default and not can_do_without:
            raise InputError(
                "reward: got []; this run learns from a reward. Give reward=NAME, or leave out reward= to "
                f"take the task's, {default}"
            )
        rewards = parts(value, "reward") or (() if asked_for_none else parts(default, "reward"))
        if not rewards and task and environment and not can_do_without:
            raise InputError(
                "reward: this task has no default reward; expected one, or an environment that rewards by "
                f"itself. Give reward=NAME; {there_are(sorted(REWARDS))}."
            )
        check_parts("reward", rewards)
        return rewards

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_of_the_task(cls, value: Any, info: ValidationInfo) -> tuple[Part, ...]:
        task = info.data.get("task")
        if isinstance(task, TaskMixture):
            return graders_of_parts("metrics", task, value)
        algorithm, judged = info.data.get("algorithm"), info.data.get("reward")
        # Without a reward, measure a run by its loss; its texts are only for a person.
        is_judged = judged or not algorithm or algorithm.traits.earns
        default = getattr(task, "default_metrics", ()) if is_judged else ()
        is_chosen = value or value == []  # an empty list means none
        metrics = parts(value if is_chosen else default, "metrics")
        check_parts("metric", metrics)
        return metrics

    @model_validator(mode="after")
    def _parts_fit(self) -> "RunSettings":
        self.reward_servers.check_labels(part.label for part in (*self.reward, *self.metrics))
        check_deadlines(self.reward, self.reward_servers)
        if self.evaluate_every == NEVER:
            for key, value in (
                ("keep_best", self.keep_best),
                ("data.evaluations_per_epoch", self.data and self.data.evaluations_per_epoch),
            ):
                if value is not None:
                    raise ValueError(f"got evaluate_every=never and {key}={value}: expected one of them")
        check_evaluated(self.stop_when, self.evaluate_every)
        sampling = self.sampling(evaluating=True)
        if sampling.min_tokens > sampling.max_tokens:
            raise ValueError(
                f"evaluation: min_tokens={sampling.min_tokens} exceeds max_tokens={sampling.max_tokens}; "
                f"a key that evaluation does not set is rollout's"
            )
        algorithm, name = self.algorithm, self.algorithm_name
        self.model.drops_out(algorithm)  # raises an error if dropout does not fit
        check_group_size(algorithm, name, self.group_size)
        check_refills(algorithm, name, self.rollout)
        num_rollouts = self.rollout.prompts_per_iteration * self.group_size
        check_corrections(algorithm, name, self.learner.mismatch, algorithm.kl, num_rollouts)
        check_reference(algorithm, name, self.model.reference.path)
        check_decoding(self.evaluation, self.rollout.stop, algorithm, name)
        for run in (self, *self.parts.values()):
            check_template(run.environment.template, run.model.chat)
        self._environment_fits()
        check_split_engine(self.rollout, self.cluster, algorithm, name, self.model.adapter.serve)
        check_passing(self.evaluation.pass_by, self.reward)
        check_curriculum(self.curriculum, algorithm, name, self.rollout.priority_scale)
        if isinstance(self.task, TaskMixture):
            check_generated(algorithm, name, self.data)
            check_answered_once(self.task, self.environment_name, plays=self.plays)
        return self

    def _environment_fits(self) -> None:
        algorithm, environment = self.algorithm, self.environment
        names = self.algorithm_name, self.environment_name
        check_target_return(algorithm, names[0], environment, names[1], self.reward, plays=self.plays)
        if self.learner.score_early:
            ahead = self.rollout.max_staleness
            check_early_scores(self.learner.num_processes, ahead, self.why_not_early)
        check_endless(algorithm, names[1], ignore_eos=self.rollout.ignore_eos, plays=self.plays)
        if self.plays:
            check_patience(environment, names[1], self.rollout.stall_timeout_s)
            check_marks(self.task, environment)
            check_answers(environment, names[1], self.evaluation.num_beams)
            check_own_reward(environment, names[1], self.reward)
            check_expert(algorithm, names[0], environment, names[1])

    @property
    def parts(self) -> dict[str, "RunSettings"]:
        """Return the parts of a mixture by name, each as settings of a run of this part alone.

        Return {} for other tasks. So a part's prompts are read and checked like those of any run.
        """
        if not isinstance(self.task, TaskMixture):
            return {}
        return {name: self._of_part(name, part) for name, part in self.task.parts.items()}

    @property
    def by_task(self) -> dict[str, "RunSettings"]:
        """Return the settings for each task's prompts: a mixture's parts, or the run itself under ""."""
        return self.parts or {"": self}

    @property
    def by_part(self) -> ByPart:
        """Return which graders grade the texts of each part of a mixture."""
        return ByPart(
            {name: [part.label for part in run.reward] for name, run in self.parts.items()},
            {name: [metric.label for metric in run.metrics] for name, run in self.parts.items()},
        )

    @property
    def prefers_vllm(self) -> bool:
        """Tell whether the run needs vLLM's features, or starts texts while others are being written."""
        begins_any_time = self.plays or self.rollout.max_staleness > 0
        is_sent = self.learner.transport not in ("auto", "objects")
        is_served = self.model.adapter.serve == "adapter"
        return begins_any_time or is_sent or is_served or self.rollout.needs_vllm

    @property
    def reserved_gpus(self) -> tuple[tuple[float, int], ...]:
        """Return (GPUs of a replica, number of replicas) of rewards and metrics that reserve GPUs."""
        return self.reward_servers.reserved_gpus((*self.reward, *self.metrics))

    def _of_part(self, name: str, part: TaskPart) -> "RunSettings":
        chat = {**self.model.chat.model_dump(), **part.options.chat}
        of_part: dict[str, Any] = {
            "task": part.task,
            "reward": part.reward,
            "metrics": part.metrics,
            "model": self.model.model_copy(
                update={"chat": build(ChatSettings, chat, f"task.parts.{name}.chat")}
            ),
        }
        if self.curriculum is not None and part.options.solved_at is not None:
            of_part["curriculum"] = typed(
                {**self.curriculum.model_dump(), "solved_at": part.options.solved_at}
            )
        of_part |= _template(of_part["model"].chat, self.environment, part.task)
        run = self.model_copy(update=of_part)
        run._given = {**self._given, "task": {"name": part.options.task}}
        run._sides = sides_of(part.options.truncation_side, part.task)
        return run

    def resolved(self) -> dict[str, Any]:
        """Return all settings as plain data, with defaults; `build(RunSettings, …, "")` reads them back."""
        plain = {name: _plain(getattr(self, name)) for name in type(self).model_fields}
        for kind in TABLES:
            component = getattr(self, kind)
            options = _plain(component) if isinstance(component, Settings) else self._given[kind]
            plain[kind] = {"name": self._given[kind]["name"], **options}
        plain["task"][SIDE_KEY] = shown_sides(self._sides)
        for kind in ("reward", "metrics"):
            plain[kind] = [
                {**part.model_dump(exclude={"options"}), **part.options} for part in getattr(self, kind)
            ]
        plain["measures"] = list(self.measures.entries)
        plain["stop_when"] = list(self.stop_when)
        return plain


def _template(chat: ChatSettings, environment: EnvironmentSettings, task: object) -> dict[str, Any]:
    """Decide about the chat template if the settings alone allow it, without reading the tokenizer.

    Returns: the environment with its decision, as an update of a run; {} if nothing is decided.
    """
    if environment.template != "auto" or isinstance(task, TaskMixture):  # each part decides
        return {}
    if chat.is_explicit:
        template = "chat"
    elif chat.template == NONE or getattr(task, "raw_text", False):
        template = "plain"
    else:
        return {}
    return {"environment": environment.model_copy(update={"template": template})}


def _plain(value: Any) -> Any:
    if not isinstance(value, Settings):
        return value
    if isinstance(value, ServerSettings):  # only set keys: replicas exclude bounds
        return value.model_dump(mode="json", exclude_unset=True)
    return value.model_dump(mode="json") | {
        name: _plain(inner) for name, inner in value if isinstance(inner, Settings)
    }
