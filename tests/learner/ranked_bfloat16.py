"""Two ranks that compute in bfloat16: what each online algorithm trains, publishes and resumes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.components import find
from contracts.rollout import Rollout, Sampling
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm, OptimizerSettings
from learner.algorithms.classes import algorithm_class
from learner.distributed.rendezvous import Rendezvous
from learner.distributed.sharding import Root, whole
from learner.learner import Learner
from learner.settings import LearnerSettings, ModelSettings, ReferenceSettings
from tests.learner.tiny import random_rollouts, without_times

ONLINE = [name for name in ALGORITHMS if algorithm_class(name).traits.online]
GROUP = 4
# Steps that are proportional to the gradients: Adam's usual eps makes whole steps of their rounding.
PROPORTIONAL = OptimizerSettings(eps=1.0)
LEARNING_RATES = {"dr_grpo": 0.6, "dppo": 0.6, "gspo": 1.0, "rloo": 0.6}  # of small gradients
TOP_K = Sampling(max_tokens=17, top_k=30)  # so that supports, too, are found by ranks


def algorithm_of(name: str) -> Algorithm:
    kind: Any = find("algorithm", name, ALGORITHMS)
    options = {
        "num_epochs": 1,
        "minibatch_size": 8,
        "learning_rate": LEARNING_RATES.get(name, 0.3),
        "cg_max_steps": 3,
        "cg_damping": 0.5,
        "optimizer": PROPORTIONAL,
    }
    if name == "a2c":
        del options["minibatch_size"]  # it makes one step
    if name == "pass_at_k":
        options |= {"k": 2, "pass_at": 0.0}  # of groups of four
    if name == "trpo":
        options["target_kl"] = 0.1  # a region wide enough for a step that can be seen
    return kind(**{key: option for key, option in options.items() if key in kind.model_fields})  # type: ignore[no-any-return]


def rollouts_for(seed: int) -> list[Rollout]:
    return [replace(one, group=i // GROUP) for i, one in enumerate(random_rollouts(16, seed))]


def make(folder: Path, name: str, rendezvous: Rendezvous | None = None, **settings: Any) -> Learner:
    """A learner, or one rank of it; several micro-batches make a minibatch."""
    options = {"autocast": "bfloat16", "token_budget": 80, **settings}
    other = ReferenceSettings(path=str(folder / "teacher")) if name == "distillation" else ReferenceSettings()
    return Learner(
        ModelSettings(path=str(folder / "model"), dropout=False, reference=other),
        algorithm_of(name),
        LearnerSettings(device="cpu", num_threads=1, **options),
        seed=0,
        iterations=4,
        sampling=TOP_K,
        rendezvous=rendezvous,
    )


def published(
    learner: Learner, dtype: str = "bfloat16"
) -> tuple[dict[str, torch.Tensor], list[float], float]:
    """The arrays, the probe's log-probabilities and its tolerance."""
    manifest, sent = learner.publish(dtype)
    kind = getattr(torch, dtype)
    arrays = {name: torch.tensor(array).view(kind) for name, array in sent.items()}  # type: ignore[arg-type]
    return arrays, list(manifest.probe.logprobs), manifest.probe.tolerance


class Sums(TorchDispatchMode):
    """Counts the sums of gradients, of which each rank gets its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


class Rank:
    """One of two processes, which make up one learner after another."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder

    def learner(self, name: str, what: str, **settings: Any) -> Learner:
        meeting = Rendezvous(self.rank, 2, f"file://{self.folder}/{what}-{name}")
        return make(self.folder, name, meeting, **settings)

    def tell(self, file: str, message: Any) -> None:
        if self.rank == 0:
            (self.folder / f"{file}.json").write_text(json.dumps(message))

    def update_publish_and_resume(self, name: str) -> None:
        learner = self.learner(name, "first")
        metrics = [without_times(learner.update(rollouts_for(0)))]
        arrays, logprobs, tolerance = published(learner)
        exact = published(learner, "float32")[2]
        if self.rank == 0:
            save_file(arrays, self.folder / f"{name}.safetensors")
            (self.folder / name).mkdir()
        torch.distributed.barrier()
        learner.save(str(self.folder / name))
        metrics.append(without_times(learner.update(rollouts_for(1))))
        after = [whole(p.detach()) for p in learner.pair.parameters()]
        learner.leave()

        resumed = self.learner(name, "resumed")
        resumed.load(str(self.folder / name))
        metrics.append(without_times(resumed.update(rollouts_for(1))))
        again = [whole(p.detach()) for p in resumed.pair.parameters()]
        same = all(torch.equal(one, other) for one, other in zip(after, again, strict=True))
        resumed.leave()
        self.tell(name, [metrics, logprobs, tolerance, exact, same])

    def what_is_sent(self, sum_gradients: str) -> None:
        """Count the sums of gradients in an update."""
        learner = self.learner("ppo", sum_gradients, sum_gradients=sum_gradients)
        with Sums() as sums:
            learner.update(rollouts_for(0))
        arrays, _, _ = published(learner, "float32")
        if self.rank == 0:
            save_file(arrays, self.folder / f"{sum_gradients}.safetensors")
        learner.leave()
        self.tell(sum_gradients, sums.count)

    def roots(self) -> None:
        """Say for each pass of a block whether it ran inside a call of the root."""
        learner, seen = self.learner("ppo", "roots"), list[bool]()
        (root,) = (root for root in learner.ranks._roots if root.module is learner.pair)
        assert isinstance(root, Root)
        state: Any = root._get_fsdp_state()  # type: ignore[attr-defined]
        for layer in learner.pair.lm.model.layers:
            layer.register_forward_hook(lambda *_: seen.append(state._state_ctx.iter_forward_root is state))
        learner.update(rollouts_for(0))
        learner.publish("bfloat16")
        learner.leave()
        self.tell("roots", seen)


def work(index: int, folder: str, names: Sequence[str]) -> None:
    """All that the tests look at, in one go: a process takes longer to start than to do it."""
    torch.set_num_threads(1)
    rank = Rank(index, Path(folder))
    for name in names:
        rank.update_publish_and_resume(name)
    for when in ("micro_batch", "minibatch"):
        rank.what_is_sent(when)
    rank.roots()
