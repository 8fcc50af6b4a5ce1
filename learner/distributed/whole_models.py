"""Say where each process of a learner must hold the models whole. The import needs no torch.

Elsewhere FSDP2 spreads the models over the processes, the frozen base under an adapter too, or offloads them.
FSDP2 lets a parameter have one owner. So a base that two models read, each with an adapter, stays whole.
"""

from learner.algorithms.base import Algorithm
from learner.settings import ModelSettings


def why_whole(model: ModelSettings, algorithm: Algorithm) -> tuple[str, str] | None:
    """Return why models can't be spread, and what to take instead; None: they can be.

    >>> from learner.algorithms.ppo import PPO
    >>> lora = ModelSettings(path="gpt2", adapter={"kind": "lora"}, value_trunk="separate")
    >>> why_whole(lora, PPO())
    ('model.value_trunk=separate, a critic that reads the base under the adapter', 'model.value_trunk=shared')
    """
    adapter = model.adapter
    reasons = (
        (
            algorithm.traits.update == "trust_region",
            "an algorithm whose step needs the whole policy on one device, as trpo's",
            "another algorithm",
        ),
        (
            adapter.kind == "qlora",
            "model.adapter.kind=qlora, whose 4-bit weights have no rows",
            "model.adapter.kind=lora",
        ),
        (
            bool(adapter.roles),
            f"model.adapter.roles={list(adapter.roles)}, whose learners take turns with one base",
            "model.adapter.roles=[]",
        ),
        (
            adapter.trains and model.value_trunk == "separate",
            "model.value_trunk=separate, a critic that reads the base under the adapter",
            "model.value_trunk=shared",
        ),
        (
            adapter.trains and (algorithm.traits.masks or algorithm.averages),
            f"model.adapter.kind={adapter.kind} and an algorithm with a copy of the policy, as nlpo's mask",
            "another algorithm",
        ),
    )
    return next(((why, expected) for is_so, why, expected in reasons if is_so), None)


def spreads(model: ModelSettings, algorithm: Algorithm) -> bool:
    """Return whether processes share one copy of the models, or the host holds them for a GPU."""
    return why_whole(model, algorithm) is None
