"""Whetstone for scripts and notebooks: train with a reward that is a function, and read the results.

    run = whetstone.train(experiment="demo", model__path=whetstone.demo_model(), reward=my_function)
    run.metrics["reward/mean"].plot()

Rewards, tasks, environments and algorithms of your own import their names from here, too:
`from whetstone import Prompt, Settings`.
"""

from typing import TYPE_CHECKING, Any

from whetstone.errors import InputError, RunError
from whetstone.grading import Graded, evaluate, score
from whetstone.public import PLACES, public
from whetstone.runs import Run, load_run
from whetstone.training import demo_model, train

if TYPE_CHECKING:  # for type checkers and editors; whetstone/public.py imports each when it is used
    from contracts.environments import Environment, Observation, Step
    from contracts.rollout import FinishReason, MaskRule, Prompt, Rollout
    from contracts.scores import Grade, Metric, MetricValue, Reward, Sample
    from contracts.secrets.secret_values import remember_secret
    from contracts.settings import Settings
    from contracts.turn import Turn
    from learner.algorithms.base import Algorithm, OptimizerSettings
    from learner.algorithms.inputs import Credit, CreditInputs, LossInputs, LossOutput
    from learner.algorithms.traits import Traits
    from learner.batches.batching import MicroBatch
    from learner.models.critic import Critic, LinearCritic
    from learner.models.policy import CausalPolicy, Policy, Seq2SeqPolicy
    from learner.optimization.kl_control import KLSettings
    from rollout_workers.engines.base import Generation
    from rollout_workers.engines.traits import EngineTraits
    from rollout_workers.environments.base import EnvironmentSettings
    from services.config.curriculum_settings import Curriculum
    from services.config.measures import Measure
    from services.data.tasks.base import Split, Task
    from services.data.tasks.data_set import DataSetTask
    from services.data.tasks.response_task import Answer, Answered, ResponseTask
    from services.data.tasks.rows import text_at
    from services.training.loop.evaluations.evaluated_model import EvaluatedModel

__all__ = [
    "Algorithm",
    "Answer",
    "Answered",
    "CausalPolicy",
    "Credit",
    "CreditInputs",
    "Critic",
    "Curriculum",
    "DataSetTask",
    "EngineTraits",
    "Environment",
    "EnvironmentSettings",
    "EvaluatedModel",
    "FinishReason",
    "Generation",
    "Grade",
    "Graded",
    "InputError",
    "KLSettings",
    "LinearCritic",
    "LossInputs",
    "LossOutput",
    "MaskRule",
    "Measure",
    "Metric",
    "MetricValue",
    "MicroBatch",
    "Observation",
    "OptimizerSettings",
    "Policy",
    "Prompt",
    "ResponseTask",
    "Reward",
    "Rollout",
    "Run",
    "RunError",
    "Sample",
    "Seq2SeqPolicy",
    "Settings",
    "Split",
    "Step",
    "Task",
    "Traits",
    "Turn",
    "demo_model",
    "evaluate",
    "load_run",
    "remember_secret",
    "score",
    "text_at",
    "train",
]


def __getattr__(name: str) -> Any:
    return public(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES})
