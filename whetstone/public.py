"""Names of Whetstone's other packages that users import from `whetstone`, and the module of each.

A module is imported at the first use of one of its names, because learner modules import torch.
"""

import importlib
from collections.abc import Mapping
from typing import Any

# The reference page has these titles.
BY_TITLE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Prompts, texts and settings": {
        "contracts.rollout": ("Prompt", "Rollout", "MaskRule", "FinishReason"),
        "contracts.turn": ("Turn",),
        "contracts.scores": ("Sample",),
        "contracts.settings": ("Settings",),
        "contracts.secrets.secret_values": ("remember_secret",),
    },
    "Rewards, metrics, measures and curricula": {
        "contracts.scores": ("Reward", "Grade", "Metric", "MetricValue"),
        "services.config.measures": ("Measure",),
        "services.training.loop.evaluations.evaluated_model": ("EvaluatedModel",),
        "services.config.curriculum_settings": ("Curriculum",),
    },
    "Tasks": {
        "services.data.tasks.base": ("Split", "Task"),
        "services.data.tasks.data_set": ("DataSetTask",),
        "services.data.tasks.response_task": ("Answer", "Answered", "ResponseTask"),
        "services.data.tasks.rows": ("text_at",),
    },
    "Engines": {
        "rollout_workers.engines.traits": ("EngineTraits",),
        "rollout_workers.engines.base": ("Generation",),
    },
    "Environments": {
        "contracts.environments": ("Environment", "Observation", "Step"),
        "rollout_workers.environments.base": ("EnvironmentSettings",),
    },
    "Algorithms": {
        "learner.algorithms.base": ("Algorithm", "OptimizerSettings"),
        "learner.algorithms.inputs": ("Credit", "CreditInputs", "LossInputs", "LossOutput"),
        "learner.algorithms.traits": ("Traits",),
        "learner.optimization.kl_control": ("KLSettings",),
    },
    "Policies and critics": {
        "learner.models.policy": ("Policy", "CausalPolicy", "Seq2SeqPolicy"),
        "learner.models.critic": ("Critic", "LinearCritic"),
        "learner.batches.batching": ("MicroBatch",),
    },
}
PLACES = {
    name: module for modules in BY_TITLE.values() for module, names in modules.items() for name in names
}


def public(name: str) -> Any:
    """Return the class or function of this name.

    Raises:
        AttributeError: `whetstone` has no such name.
    """
    if name not in PLACES:
        raise AttributeError(f"module 'whetstone' has no attribute {name!r}")
    return getattr(importlib.import_module(PLACES[name]), name)
