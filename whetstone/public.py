"""Names of Whetstone's other packages that users import from `whetstone`, and the module of each.

A module is imported when one of its names is first asked for, because learner modules import torch.
"""

import importlib
from collections.abc import Mapping
from typing import Any

# The titles are those of the reference page.
BY_TITLE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Prompts, texts and settings": {
        "contracts.rollout": ("Prompt", "Rollout", "MaskRule"),
        "contracts.turn": ("Turn",),
        "contracts.scores": ("Sample",),
        "contracts.settings": ("Settings",),
        "contracts.secrets.secret_values": ("remember_secret",),
    },
    "Rewards, metrics and measures": {
        "contracts.scores": ("Reward", "Grade", "Metric", "MetricValue"),
        "services.config.measures": ("Measure",),
        "services.loop.evaluations.evaluated_model": ("EvaluatedModel",),
    },
    "Tasks": {
        "services.tasks.base": ("Split", "Task"),
        "services.tasks.data_set": ("DataSetTask",),
        "services.tasks.response_task": ("Answer", "Answered", "ResponseTask"),
        "services.tasks.rows": ("text_at",),
    },
    "Environments": {
        "contracts.environments": ("Environment", "Observation", "Step"),
        "rollout_workers.environments.base": ("EnvironmentSettings",),
    },
    "Algorithms": {
        "learner.algorithms.base": ("Algorithm", "OptimizerSettings"),
        "learner.algorithms.inputs": ("Credit", "CreditInputs", "LossInputs", "LossOutput"),
        "learner.algorithms.traits": ("Traits",),
        "learner.kl_control": ("KLSettings",),
    },
    "Policies and critics": {
        "learner.models.policy": ("Policy", "CausalPolicy", "Seq2SeqPolicy"),
        "learner.models.critic": ("Critic", "LinearCritic"),
        "learner.batching": ("MicroBatch",),
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
