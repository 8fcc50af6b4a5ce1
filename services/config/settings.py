"""All settings of a run, typed once. YAML and the command line become `RunSettings`.

No later code reads a configuration tree: each part gets its own settings.
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
from reward_servers.part_checks import check_parts
from reward_servers.rewards import REWARDS
from reward_servers.settings import Part, ServerSettings, parts
from rollout_workers.environments.base import EnvironmentSettings
from services.config.component_settings import TABLES, name_and_options
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
from services.runs.best import Criterion
from services.tasks.base import SIDE_KEY
from services.tasks.mixture import TaskMixture, TaskPart
from services.tokens.prompt_tokens import shown_sides, sides_of


class RunSettings(RunParts):
    """One run. `algorithm`, `task` and `environment` are given as names with options.

    The task has defaults for reward and metrics. Where the environment rewards by itself, or the algorithm
    learns from texts alone, `reward` may be left out or be `[]`. A reward that is given is added to the
    environment's.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_run(cls, given: Any, validate: Any) -> "RunSettings":
        if not isinstance(given, Mapping):
            return validate(given)  # type: ignore[no-any-return]
        given = {"environment": "single_turn", **given}
        named = {kind: name_and_options(given[kind], kind) for kind in TABLES if kind in given}
        side = None
        if "task" in named:  # an option of every task, which no task's class declares
            name, options = named["task"]
            side = options.pop(SIDE_KEY, None)
            if name == "mixture":
                options = with_defaults(options, {**given, SIDE_KEY: side})
            given = {**given, "task": {"name": name, **options}}
        if given.get("run_name") is None:
            labels = [own_name(named[kind][0]) for kind in ("task", "algorithm") if kind in named]
            given = {**given, "run_name": "-".join([*labels, f"seed{given.get('seed', 0)}"])}
        settings: RunSettings = validate(given)
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
    def _name_alone(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @field_validator("reward", mode="before")
    @classmethod
    def _reward_of_the_task(cls, value: Any, info: ValidationInfo) -> tuple[Part, ...]:
        task = info.data.get("task")  # absent: refused elsewhere
        if isinstance(task, TaskMixture):
            return graders_of_parts("reward", task, value, info.data.get("algorithm"))
        default = getattr(task, "default_reward", None)
        if isinstance(value, Mapping) and "name" not in value and default:
            value = {"name": default, **value}
        environment, algorithm = info.data.get("environment"), info.data.get("algorithm")
        rewards_itself = bool(environment and environment.rewards_itself)
        can_do_without = rewards_itself or bool(algorithm and not algorithm.traits.earns)
        asked_for_none = can_do_without and value == []
        found = parts(value, "reward") or (() if asked_for_none else parts(default, "reward"))
        if not found and task and environment and not can_do_without:
            raise InputError(
                "reward: this task has no default reward; expected one, or an environment that rewards by "
                f"itself. Give reward=NAME; {there_are(sorted(REWARDS))}."
            )
        check_parts("reward", found)
        return found

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_of_the_task(cls, value: Any, info: ValidationInfo) -> tuple[Part, ...]:
        task = info.data.get("task")
        if isinstance(task, TaskMixture):
            return graders_of_parts("metrics", task, value)
        algorithm, judged = info.data.get("algorithm"), info.data.get("reward")
        # A run that no reward judges is measured by its loss: its texts are only looked at.
        is_judged = judged or not algorithm or algorithm.traits.earns
        default = getattr(task, "default_metrics", ()) if is_judged else ()
        asked = value or value == []  # an empty list asks for none
        found = parts(value if asked else default, "metrics")
        check_parts("metric", found)
        return found

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
        sampling = self.sampling(evaluating=True)
        if sampling.min_tokens > sampling.max_tokens:
            raise ValueError(
                f"evaluation: min_tokens={sampling.min_tokens} exceeds max_tokens={sampling.max_tokens}; "
                f"a key that evaluation does not set is rollout's"
            )
        algorithm, name = self.algorithm, self.algorithm_name
        self.model.drops_out(algorithm)  # raises where dropout does not fit
        check_group_size(algorithm, name, self.group_size)
        check_refills(algorithm, name, self.rollout.max_staleness)
        num_rollouts = self.rollout.prompts_per_iteration * self.group_size
        check_corrections(algorithm, name, self.learner.mismatch, algorithm.kl, num_rollouts)
        check_reference(algorithm, name, self.model.reference.path)
        check_decoding(self.evaluation, self.rollout.stop, algorithm, name)
        for run in (self, *self.parts.values()):
            check_template(run.environment.template, run.model.chat)
        self._environment_fits()
        check_split_engine(self.rollout, self.cluster, algorithm, name, self.model.adapter.serve)
        check_passing(self.evaluation.pass_by, self.reward)
        check_curriculum(self.curriculum, algorithm, name)
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
        """Return by name the parts of a mixture, each as the settings of a run of this part alone.

        They are empty for other tasks. So a part's prompts are read and checked as those of any run.
        """
        if not isinstance(self.task, TaskMixture):
            return {}
        return {name: self._of_part(name, part) for name, part in self.task.parts.items()}

    @property
    def by_task(self) -> dict[str, "RunSettings"]:
        """Return the settings that each task's prompts follow: a mixture's parts, or the run itself as ""."""
        return self.parts or {"": self}

    @property
    def by_part(self) -> ByPart:
        """Return which graders judge the texts of which part of a mixture."""
        return ByPart(
            {name: [each.label for each in run.reward] for name, run in self.parts.items()},
            {name: [each.label for each in run.metrics] for name, run in self.parts.items()},
        )

    @property
    def prefers_vllm(self) -> bool:
        """Tell whether the run asks for what only vLLM has, or lets texts begin while others go on."""
        begins_any_time = self.plays or self.rollout.max_staleness > 0
        is_sent = self.learner.transport not in ("auto", "objects")
        is_served = self.model.adapter.serve == "adapter"
        return begins_any_time or is_sent or is_served or self.rollout.needs_vllm

    @property
    def reserved_gpus(self) -> tuple[tuple[float, int], ...]:
        """Return (GPUs of a replica, number of replicas) of the rewards and metrics that reserve any."""
        return self.reward_servers.reserved_gpus((*self.reward, *self.metrics))

    def _of_part(self, name: str, part: TaskPart) -> "RunSettings":
        chat = {**self.model.chat.model_dump(), **part.options.chat}
        own: dict[str, Any] = {
            "task": part.task,
            "reward": part.reward,
            "metrics": part.metrics,
            "model": self.model.model_copy(
                update={"chat": build(ChatSettings, chat, f"task.parts.{name}.chat")}
            ),
        }
        if self.curriculum is not None and part.options.solved_at is not None:
            solved_at = {"solved_at": part.options.solved_at}
            own["curriculum"] = self.curriculum.model_copy(update=solved_at)
        own |= _template(own["model"].chat, self.environment, part.task)
        run = self.model_copy(update=own)
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
        return plain


def _template(chat: ChatSettings, environment: EnvironmentSettings, task: object) -> dict[str, Any]:
    """Decide about the chat template, where settings alone can: the tokenizer is not read here.

    Returns: the environment with its decision, as an update of a run; {}: nothing is decided.
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
    if isinstance(value, ServerSettings):  # given keys alone: replicas and bounds exclude each other
        return value.model_dump(mode="json", exclude_unset=True)
    return value.model_dump(mode="json") | {
        name: _plain(inner) for name, inner in value if isinstance(inner, Settings)
    }
