"""The parts of a run as fields, and values derived from them.

`RunSettings` parses the fields, and checks that they fit together.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, PrivateAttr, ValidatorFunctionWrapHandler, field_validator

from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import Sampling
from contracts.settings import Settings
from learner.algorithms.base import Algorithm
from learner.passes.known_passes import (
    PassInputs,
    said_of_passes,
    scored_share,
    scores_come_with_the_update,
    why_not_early,
)
from learner.passes.operations import Passes, passes_of
from learner.settings import LearnerSettings, ModelSettings
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.user_rewards.own import wants_groups
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.environments.single_turn import SingleTurn
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.component_settings import component
from services.config.curriculum_settings import AnyCurriculum
from services.config.data_settings import DataSettings
from services.config.evaluation_settings import DRAWN_AS, NEVER, EvaluationSettings
from services.config.measures import Measures
from services.config.reward_view import Judging
from services.data.tasks.base import HELD_OUT, Side, Split, Task
from services.data.tokens.prompt_limit import PromptLimit
from services.models.chat_template import form_of
from services.models.files import ModelFiles
from services.runs.stopping.rules import StopWhen
from services.runs.tracking.notice import NotifySettings
from services.runs.tracking.settings import TrackingSettings


class RunParts(Settings):
    """The parts of one run. `algorithm`, `task` and `environment` are already built."""

    algorithm: Annotated[Algorithm, PlainValidator(component)]
    task: Annotated[Task, PlainValidator(component)]  # source of the prompts
    # Plays prompts with the model. single_turn: one prompt, one answer
    environment: Annotated[EnvironmentSettings, PlainValidator(component)] = Field(
        default="single_turn", validate_default=True
    )
    model: ModelSettings
    data: DataSettings | None = None  # annotated data set to learn from; data=FOLDER sets data.folder
    # Choose the prompts by their rewards: curriculum=pass_rate, or FILE.py:Class with its options
    curriculum: AnyCurriculum | None = None
    reward: tuple[Part, ...] = Field(default=(), validate_default=True)  # one reward, or a weighted list
    metrics: tuple[Part, ...] = Field(default=(), validate_default=True)  # measured in evaluations only
    measures: Annotated[Measures, PlainValidator(Measures)] = Measures()  # your metrics of each iteration

    iterations: int = Field(default=100, ge=1)  # updates of the whole run
    # End before the last iteration: ["entropy<0.05", "val/reward/mean no better for 10", "diagnosis:NAME"]
    stop_when: StopWhen = ()
    seed: int = Field(default=0, ge=0)  # seeds sampling, initialization and the prompts' order
    run_name: str  # folder in output_dir
    output_dir: str = "runs"  # folder of all runs
    # Iterations; 0: only before the first and after the last; never: don't even read held-out prompts
    evaluate_every: Annotated[int, Field(ge=0)] | Literal["never"] = 10
    save_every: int = Field(default=10, ge=0)  # iterations; 0: only after the last
    keep_checkpoints: int = Field(default=2, ge=1)  # newest checkpoints to keep; older ones are deleted
    keep_best: str | None = None  # also keep the best checkpoint by this metric: val/reward/mean, min:val/…
    mirror: str | None = None  # s3://…, gs://…, file://…: copy the run there, and restore it
    resume: Literal["auto", "never"] = "auto"  # never: reject a folder with results

    rollout: RolloutSettings = RolloutSettings()
    learner: LearnerSettings = LearnerSettings()
    reward_servers: RewardServersSettings = RewardServersSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    notify: NotifySettings = NotifySettings()
    cluster: ClusterSettings = ClusterSettings()

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)  # names and options of the components
    _sides: dict[Split, Side] = PrivateAttr(default_factory=dict)  # side on which long prompts are cut

    @field_validator("evaluate_every", mode="wrap")
    @classmethod
    def _counts_iterations(cls, value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        try:
            if not isinstance(value, bool):
                return parse(value)
            value = "yes" if value else "no"  # YAML reads `no` as false
        except ValueError:
            pass
        raise ValueError(f"got {value!r}; expected a number of iterations, 0, or {NEVER}")

    @property
    def group_size(self) -> int:
        """Return the number of rollouts of each prompt, from the settings or the algorithm's default."""
        return self.rollout.group_size or self.algorithm.traits.default_group_size or 1

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
        """Tell whether rollouts are episodes of an environment, instead of one prompt and one answer."""
        return not isinstance(self.environment, SingleTurn)

    @property
    def plays_experts(self) -> bool:
        """Tell whether training imitates an expert that plays in the environment."""
        return self.plays and self.algorithm.traits.learns_from == "references"

    @property
    def demonstrates(self) -> bool:
        """Tell whether training learns from a task's references, without texts of the policy."""
        return self.algorithm.traits.learns_from == "references" and not self.plays

    @property
    def generates(self) -> bool:
        """Tell whether the policy writes texts in training. Otherwise only evaluations need its weights."""
        from_data = self.data is not None and self.data.share is None
        return not (from_data or self.demonstrates)

    @property
    def has_own_rows(self) -> bool:
        """Tell whether training learns only from rows without an annotation."""
        return self.data is not None and self.data.has_rows and self.data.share is None

    @property
    def has_held_out_responses(self) -> bool:
        """Tell whether evaluations measure the data's responses, which training imitates or compares."""
        return self.has_own_rows or self.demonstrates or self.algorithm.traits.teacher

    @property
    def run_folder(self) -> Path:
        """Return the path of the run's folder."""
        return Path(self.output_dir).absolute() / self.run_name

    @property
    def evaluated_splits(self) -> tuple[Split, ...]:
        """Return the splits that training evaluates."""
        return () if self.evaluate_every == NEVER else HELD_OUT

    @property
    def is_graded(self) -> bool:
        """Tell whether anything grades the texts of evaluations. Otherwise a few are written for a person."""
        return bool(self.reward or self.metrics or self.environment.rewards_itself)

    @property
    def judging(self) -> Judging:
        """Return how rewards grade a rollout in training and evaluation."""
        return Judging(
            at=self.environment.reward_at if self.reward else "never",
            environment=self.environment_name if self.plays else None,
            rewards_itself=self.environment.rewards_itself,
            own_talks=self.environment.has_own_talks,
            splits_credit=self.environment.splits_credit,
            whole_groups=wants_groups(self.reward),
        )

    @property
    def reward_patience_s(self) -> float:
        """Return the seconds to wait for a score. Each new score restarts this time."""
        return self.reward_servers.patience_s(part.label for part in self.reward)

    @property
    def passes_left_out(self) -> list[str]:
        """Say which passes an update leaves out, because their numbers are known or unused."""
        return said_of_passes(self.algorithm, **self._passes)

    @property
    def why_not_early(self) -> str | None:
        """Say why finished rollouts can't be scored while others are written; None if they can."""
        comes_with_update = scores_come_with_the_update(self.algorithm, **self._passes)
        return why_not_early(
            self.algorithm, restricts=self._passes["restricts"], with_the_update=comes_with_update
        )

    @property
    def passes(self) -> Passes:
        """Return the passes that an iteration makes over its rollouts."""
        scored = scored_share(self.algorithm, **self._passes)
        critic_alone = self.model.value_trunk == "separate"
        return passes_of(self.algorithm, self._passes["num_rollouts"], scored, separate_critic=critic_alone)

    @property
    def _passes(self) -> PassInputs:
        return PassInputs(
            num_rollouts=self.rollout.prompts_per_iteration * self.group_size,
            restricts=self.sampling().excludes_tokens and self.learner.behavior == "exact",
            has_data=bool(self.data),
            drops_out=self.model.any_dropout(self.algorithm),
        )

    def chat_form(self, model: ModelFiles) -> ChatForm | None:
        """Return the chat template with which this run reads prompts; None if prompts are plain text.

        Raises:
            InputError: a template is requested but missing, or its file can't be read.
        """
        return form_of(self.model.chat, self.environment.template, model.tokenizer_folder)

    def prompt_limit(self, split: Split) -> PromptLimit:
        """Return the most tokens of this split's prompts, and the side on which longer ones are cut."""
        side, of_evaluation = self._sides[split], self.evaluation.max_prompt_tokens
        if split != "train" and of_evaluation is not None:
            return PromptLimit(of_evaluation, side, "evaluation.max_prompt_tokens")
        return PromptLimit(self.rollout.max_prompt_tokens, side)

    def sampling(self, evaluating: bool = False) -> Sampling:
        """Return how the model samples: with `rollout`'s settings, which `evaluation` may override.

        Random example actions and `ignore_eos` are only for training. `loop.evaluations.baselines` sets other
        players.
        """
        chosen: dict[str, Any] = {name: getattr(self.rollout, name) for name in DRAWN_AS}
        chosen["masked"] = self.algorithm.traits.masks
        chosen |= {"example_rate": self.environment.example_rate, "ignore_eos": self.rollout.ignore_eos}
        if evaluating:
            chosen |= {"num_beams": 1, "length_penalty": 1.0, "masked": False, "example_rate": 0.0}
            chosen["ignore_eos"] = False
            of_evaluation = self.evaluation.model_dump(include=set(chosen), exclude_none=True)
            chosen |= of_evaluation
        return Sampling(**chosen)
