"""Train an adapter for each role over one frozen model: each role's learner gets that role's turns.

    rollouts ─▶ turns of `pro` ─▶ learner with the adapter `pro` ─┐
             └▶ turns of `con` ─▶ learner with the adapter `con` ─┴─▶ one manifest, an adapter a role

Each learner has an optimiser, a critic, a KL coefficient and a scale of rewards. All share the base and its
ranks and take turns, each with its adapter in use. So each gives the same bits as it would alone.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from contracts.clients import TokenNumbers
from contracts.errors import LearnerError
from contracts.rollout import Rollout
from contracts.weights import WeightManifest
from learner.algorithms.base import Algorithm
from learner.checkpoint import ADAPTER
from learner.learner import Learner
from learner.models.compiled_blocks import CompiledBlocks
from learner.models.named_adapters import NamedAdapters, Role, RoleAdapter
from learner.publishing.changed_elements import Array, Sent
from learner.publishing.weight_publisher import proof
from learner.settings import LearnerSettings, ModelSettings

SUMS = ("time/", "tokens/", "rollouts/")


class RoleLearners:
    """Stand-in for a `Learner` if `model.adapter.roles` names roles; takes the same options."""

    def __init__(
        self,
        model: ModelSettings,
        algorithm: Algorithm,
        settings: LearnerSettings,
        *,
        seed: int,
        **options: Any,
    ) -> None:
        self.learners: dict[str, Learner] = {}
        for name in model.adapter.roles:
            before = next(iter(self.learners.values()), None)
            shared = () if before is None else (_adapter(before).adapters, before.ranks)
            role = Role(name, _seed(seed, name), *shared)
            self.learners[name] = Learner(model, algorithm, settings, seed=seed, role=role, **options)
        self._at_work = self.first
        self.adapters.switch(None)

    @property
    def first(self) -> Learner:
        return next(iter(self.learners.values()))

    @property
    def adapters(self) -> NamedAdapters:
        return _adapter(self.first).adapters

    @property
    def version(self) -> int:
        return self.first.version

    @property
    def compiled(self) -> CompiledBlocks:
        return self.first.compiled

    @property
    def device(self) -> torch.device:
        return self.first.device

    @property
    def iterations(self) -> int:
        return self.first.iterations

    @iterations.setter
    def iterations(self, planned: int) -> None:
        for learner in self.learners.values():
            learner.iterations = planned

    def progress(self) -> tuple[str, int, int]:
        """Return (phase, done, total) of the working role's learner; another thread may call this."""
        return self._at_work.progress()

    def update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Train each role's adapter on that role's turns; a role without turns keeps its weights.

        Raises:
            LearnerError: a rollout has a role without an adapter.
        """
        by_role, metrics = self._by_role(rollouts), dict[str, dict[str, float]]()
        for name, learner in self.learners.items():
            if not by_role[name]:
                learner.version += 1
                continue
            with self._working(name):
                metrics[name] = learner.update(by_role[name])
                # A remaining gradient would count in the next role's norm.
                learner.optimizer.zero_grad(set_to_none=True)
        return _together(metrics, {name: len(by_role[name]) for name in metrics})

    def measure(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return measures of held-out responses; change nothing."""
        metrics = dict[str, dict[str, float]]()
        by_role = self._by_role(rollouts)
        for name in filter(by_role.get, self.learners):
            with self._working(name) as learner:
                metrics[name] = learner.measure(by_role[name])
        return _together(metrics, {name: len(by_role[name]) for name in metrics})

    def logprobs(self, rollouts: Sequence[Rollout]) -> list[list[float]]:
        """Return the log-probability of each generated token, by its role's adapter."""
        scores: dict[str, Iterator[Iterator[float]]] = {}
        for name, turns in self._by_role(rollouts).items():
            with self._working(name) as learner:
                scores[name] = iter([iter(logprobs) for logprobs in learner.logprobs(turns)] if turns else [])
        return [self._in_order(rollout, scores) for rollout in rollouts]

    @property
    def token_numbers(self) -> list[TokenNumbers]:
        """Return the numbers of each role's last update."""
        return [numbers for learner in self.learners.values() for numbers in learner.token_numbers]

    def score_early(self, rollouts: Sequence[Rollout], num_rollouts: int) -> None:
        """Do nothing, because a role's number of rollouts is unknown until all have come."""

    def publish(self, engine_dtype: str) -> tuple[WeightManifest, dict[str, Sent]]:
        """Publish each role's adapter with a probe for each; arrays are named ROLE/NAME."""
        roles, arrays = dict[str, WeightManifest](), dict[str, Sent]()
        for name in self.learners:
            with self._working(name) as learner:
                roles[name], sent = learner.publish(engine_dtype)
            arrays |= {f"{name}/{key}": array for key, array in sent.items()}
        first = self.first
        probe = proof(first.pair.lm, engine_dtype, first.ranks, first.probing(engine_dtype))
        dtypes = {
            f"{name}/{key}": kind for name, manifest in roles.items() for key, kind in manifest.dtypes.items()
        }
        num_bytes = sum(manifest.num_bytes for manifest in roles.values())
        return WeightManifest(self.version, dtypes, num_bytes, probe, roles=roles), arrays

    def published_whole(self) -> tuple[WeightManifest, dict[str, Array]]:
        return self.first.published_whole()

    def publish_mask(self, engine_dtype: str) -> None:
        return None

    def save(self, folder: str) -> None:
        """Save each role's state in a folder with its name."""
        for name in self.learners:
            place = Path(folder) / name
            place.mkdir(parents=True, exist_ok=True)
            with self._working(name) as learner:
                learner.save(str(place))

    def load(self, folder: str) -> None:
        """Restore the state at the call of `save` exactly.

        Raises:
            LearnerError: the checkpoint can't be read, or lacks a role.
        """
        if missing := [name for name in self.learners if not (Path(folder) / name).is_dir()]:
            raise LearnerError(
                f"{folder}: this checkpoint lacks the role {missing[0]}; resume with the roles that wrote it "
                "(model.adapter.roles)"
            )
        for name in self.learners:
            with self._working(name) as learner:
                learner.load(str(Path(folder) / name))

    def export(self, folder: str) -> None:
        """Write the base with its tokenizer, and each role's adapter in `adapter/ROLE`."""
        self.first.export(folder)
        for learner in self.learners.values():
            if learner.ranks.is_first:
                _adapter(learner).save(Path(folder) / ADAPTER)

    def leave(self) -> None:
        self.first.leave()

    @contextmanager
    def _working(self, name: str) -> Iterator[Learner]:
        self._at_work = self.learners[name]
        with self.adapters.use(name):
            yield self._at_work

    def _by_role(self, rollouts: Sequence[Rollout]) -> dict[str, list[Rollout]]:
        by_role: dict[str, list[Rollout]] = {name: [] for name in self.learners}
        for rollout in rollouts:
            for role in rollout.roles:
                if role not in by_role:
                    raise LearnerError(
                        f"a rollout of prompt {rollout.prompt.id} has the role {role!r}; expected those "
                        f"of model.adapter.roles={list(by_role)}, such as policy/{next(iter(by_role))}"
                    )
                turns = tuple(turn for turn in rollout.turns if turn.role == role)
                by_role[role].append(replace(rollout, turns=turns))
        return by_role

    @staticmethod
    def _in_order(rollout: Rollout, scores: Mapping[str, Iterator[Iterator[float]]]) -> list[float]:
        """Return one rollout's numbers from each role's numbers, in the order of its turns."""
        left = {role: next(scores[role]) for role in rollout.roles}
        return [next(left[turn.role]) for turn in rollout.turns for _ in range(turn.num_tokens)]


def _adapter(learner: Learner) -> RoleAdapter:
    adapter = learner.pair.adapter
    assert isinstance(adapter, RoleAdapter)
    return adapter


def _seed(seed: int, role: str) -> int:
    """Return a role's seed, which does not depend on other roles."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {role}".encode(), digest_size=4).digest(), "little")


def _together(by_role: Mapping[str, Mapping[str, float]], counts: Mapping[str, int]) -> dict[str, float]:
    """Return sums, maxima or means (weighted by rollouts) of the roles' metrics, and each role's metrics.

    >>> _together({"a": {"kl/mean": 1.0}, "b": {"kl/mean": 4.0}}, {"a": 2, "b": 1})
    {'kl/mean': 2.0, 'role/a/kl/mean': 1.0, 'role/b/kl/mean': 4.0}
    """
    together: dict[str, float] = {}
    for key in dict.fromkeys(key for metrics in by_role.values() for key in metrics):
        shares = {name: metrics[key] for name, metrics in by_role.items() if key in metrics}
        if key.startswith(SUMS):
            together[key] = sum(shares.values())
        elif key.endswith("/max"):
            together[key] = max(shares.values())
        else:
            total = sum(counts[name] for name in shares)
            together[key] = sum(counts[name] * share for name, share in shares.items()) / total
    named = {
        f"role/{name}/{key}": value for name, metrics in by_role.items() for key, value in metrics.items()
    }
    return together | named
