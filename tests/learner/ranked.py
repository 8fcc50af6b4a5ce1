"""Learners of several processes, without Ray: what each process does, and what the first of them found."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from contracts.rollout import Rollout
from learner.algorithms.a2c import A2C
from learner.algorithms.base import Algorithm
from learner.algorithms.dpo import DPO
from learner.algorithms.grpo import GRPO
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.supervised import Supervised
from learner.algorithms.trpo import TRPO
from learner.distributed.rendezvous import Rendezvous
from learner.distributed.sharding import own_rows, whole
from learner.learner import Learner
from learner.models.adapter_settings import AdapterSettings
from learner.optimization.kl_control import KLSettings
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.weights.received_weights import ReceivedWeights
from tests.learner.debates import BOTH, debates
from tests.learner.debates import make as make_roles
from tests.learner.seq2seq import Name, single_turns
from tests.learner.tiny import SMOOTH, random_rollouts, without_times

UPDATES = 4
NUM_PROCESSES = 4
IN_THE_LOSS = KLSettings(placement="loss", estimator="full", coefficient=0.1, target=0.05)
ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO(num_epochs=1, minibatch_size=8, learning_rate=1e-3, normalize_values=True, optimizer=SMOOTH),
    "nlpo": NLPO(
        num_epochs=1,
        minibatch_size=5,
        learning_rate=1e-3,
        top_p=0.8,
        target_update_iterations=3,
        kl=IN_THE_LOSS,
        optimizer=SMOOTH,
    ),
    "a2c": A2C(learning_rate=1e-3, entropy_coef=0.01, optimizer=SMOOTH),
    "trpo": TRPO(num_epochs=1, minibatch_size=5, cg_max_steps=3, cg_damping=0.5, optimizer=SMOOTH),
    # Both minibatches have a bonus that the entropies of all ranks move, at tokens that all ranks choose.
    "grpo": GRPO(
        minibatch_size=5,
        learning_rate=1e-3,
        entropy_coef=0.05,
        entropy_target=9.0,
        top_entropy_share=0.5,
        optimizer=SMOOTH,
    ),
    "dpo": DPO(minibatch_size=4, learning_rate=1e-3, optimizer=SMOOTH),
    # At the policy's rate T5's critic comes upon a kink, where rounding moves its gradient by 1 %: another
    # token_budget does so, too.
    "t5": PPO(
        num_epochs=1, minibatch_size=8, learning_rate=1e-3, critic_learning_rate=1e-4, optimizer=SMOOTH
    ),
    "bart": NLPO(num_epochs=1, minibatch_size=5, learning_rate=1e-3, kl=IN_THE_LOSS, optimizer=SMOOTH),
    "lora": PPO(num_epochs=1, minibatch_size=8, learning_rate=5e-3, normalize_values=True, optimizer=SMOOTH),
    # The reference, which is the policy without adapter, makes its passes within a step.
    "lora_served": PPO(num_epochs=1, minibatch_size=5, learning_rate=5e-3, kl=IN_THE_LOSS, optimizer=SMOOTH),
    "lora_whole": NLPO(num_epochs=1, minibatch_size=5, learning_rate=5e-3, kl=IN_THE_LOSS, optimizer=SMOOTH),
}
ADAPTED = ("lora", "lora_served", "lora_whole")  # the last one's processes hold the whole base each
MEASURED = ("ppo", "dpo")  # by tokens, and by the loss over pairs
ENCODER_DECODERS: tuple[Name, ...] = ("t5", "bart")  # by the name of their algorithm's run
MODELS: dict[str, dict[str, Any]] = {
    "ppo": {"value_trunk": "separate"},
    "a2c": {"gradient_checkpointing": True},
    "t5": {"value_trunk": "separate"},
    "bart": {"gradient_checkpointing": True},
    "lora": {"adapter": AdapterSettings(kind="lora", r=4)},
    # The matrices have three rows: of four processes three hold one row each, and one holds none.
    "lora_served": {
        "gradient_checkpointing": True,
        "adapter": AdapterSettings(kind="lora", r=3, serve="adapter"),
    },
    "lora_whole": {"value_trunk": "separate", "adapter": AdapterSettings(kind="lora", r=4)},
}


def rollouts_for(name: str, seed: int) -> list[Rollout]:
    """Rollouts of uneven lengths, some cut off; pairs for DPO. No number of ranks divides them."""
    if name in ENCODER_DECODERS:
        return single_turns(9, seed)
    rollouts = random_rollouts(10 if name == "dpo" else 9, seed)
    if name == "dpo":
        return [replace(one, group=one.lease_id // 2) for one in rollouts]
    if name == "grpo":
        return [replace(one, group=one.lease_id // 3) for one in rollouts]
    return [replace(one, truncated_context=(3, 4, 5)) if one.lease_id % 4 == 0 else one for one in rollouts]


def make(folder: Path, name: str, rendezvous: Rendezvous | None = None, **settings: Any) -> Learner:
    """A learner, or one rank of it; several micro-batches make a minibatch."""
    model = name if name in ENCODER_DECODERS else "model"
    return Learner(
        ModelSettings(path=str(folder / model), **{"dropout": False, **MODELS.get(name, {})}),
        ALGORITHMS[name],
        LearnerSettings(device="cpu", num_threads=1, token_budget=80, **settings),
        seed=0,
        iterations=UPDATES,
        rendezvous=rendezvous,
    )


def make_noisy(folder: Path, rendezvous: Rendezvous | None = None) -> Learner:
    """A learner that trains with the dropout of its model."""
    return Learner(
        ModelSettings(path=str(folder / "noisy")),
        Supervised(minibatch_size=8, learning_rate=1e-3),
        LearnerSettings(device="cpu", num_threads=1, token_budget=80),
        seed=0,
        iterations=UPDATES,
        rendezvous=rendezvous,
    )


def train(learner: Learner, name: str, seeds: Sequence[int] = range(UPDATES)) -> list[dict[str, float]]:
    return [without_times(learner.update(rollouts_for(name, seed))) for seed in seeds]


def parameters_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: whole(p.detach()).clone() for name, p in learner.pair.named_parameters()}


class Process:
    """One of several that were started together; a learner is made of some of them, then of others."""

    def __init__(self, index: int, folder: Path) -> None:
        self.index, self.folder = index, folder

    def learner(self, name: str, members: Sequence[int], what: str = "updates", **settings: Any) -> Learner:
        meeting = f"file://{self.folder}/{what}-{name}-{'-'.join(map(str, members))}"
        rank = members.index(self.index)
        return make(self.folder, name, Rendezvous(rank, len(members), meeting), **settings)

    def tell(self, file: str, learner: Learner, metrics: list[dict[str, float]]) -> None:
        """Write what was found, by the first of them."""
        parameters = parameters_of(learner)
        if learner.ranks.is_first:
            save_file(parameters, self.folder / f"{file}.safetensors")
            (self.folder / f"{file}.json").write_text(json.dumps(metrics))

    def updates(self, name: str, members: Sequence[int]) -> None:
        if self.index in members:
            learner = self.learner(name, members)
            self.tell(f"{name}-{len(members)}", learner, train(learner, name))
            learner.leave()

    def measures(self, name: str, members: Sequence[int]) -> None:
        """Measures of held-out responses, and log-probabilities of their tokens."""
        if self.index not in members:
            return
        learner, rollouts = self.learner(name, members, "measures"), rollouts_for(name, 9)
        both = learner.measure(rollouts), learner.logprobs(rollouts)
        if learner.ranks.is_first:
            (self.folder / f"measures-{name}-{len(members)}.json").write_text(json.dumps(both))
        learner.leave()

    def in_bfloat16(self, members: Sequence[int]) -> None:
        if self.index in members:
            learner = self.learner("ppo", members, "bfloat16", autocast="bfloat16")
            self.tell("bfloat16", learner, train(learner, "ppo", [0]))
            learner.leave()

    def pushed(self, members: Sequence[int]) -> None:
        """Weights of a worker after all of them came, and then changes alone."""
        if self.index not in members:
            return
        learner, worker = self.learner("ppo", members, "pushed", push="changed"), ReceivedWeights()
        held: dict[str, Any] = {}
        for seed in (0, 1):
            train(learner, "ppo", [seed])
            manifest, sent = learner.publish("bfloat16")
            if learner.ranks.is_first:
                held |= worker.take(manifest, sent)
            else:
                assert not sent
        parameters = {f"lm.{name}": whole(p.detach()) for name, p in learner.pair.lm.named_parameters()}
        if learner.ranks.is_first:
            arrays = {name: torch.from_numpy(array).view(torch.bfloat16) for name, array in held.items()}
            save_file(arrays | parameters, self.folder / "pushed.safetensors")
        learner.leave()

    def adapted(self, name: str, members: Sequence[int]) -> None:
        """Save, push and export an adapter after two updates; each rank tells the bytes that it holds."""
        if self.index not in members:
            return
        learner, folder = self.learner(name, members, "adapted"), self.folder / f"adapted-{name}"
        train(learner, name, [0, 1])
        for made in (folder, folder / "model"):
            made.mkdir(exist_ok=True)
        held = sum(own_rows(parameter.detach())[0].nbytes for parameter in learner.pair.parameters())
        (folder / f"bytes-{learner.ranks.rank}").write_text(str(held))
        learner.save(str(folder))
        manifest, sent = learner.publish("float32")
        learner.export(str(folder / "model"))
        if learner.ranks.is_first:
            assert manifest.dtypes.keys() == sent.keys()
            save_file({key: torch.from_numpy(array) for key, array in sent.items()}, folder / "pushed")
        else:
            assert not sent
        learner.leave()

    def with_roles(self, members: Sequence[int]) -> None:
        """Two updates of an adapter for each of two roles."""
        if self.index not in members:
            return
        meeting = Rendezvous(members.index(self.index), len(members), f"file://{self.folder}/roles-meeting")
        learners = make_roles(self.folder / "model", "ppo", *BOTH, rendezvous=meeting)
        for seed in (0, 1):
            learners.update(debates(seed))
        if learners.first.ranks.is_first:
            states = {role: learners.adapters.state(role) for role in BOTH}
            flat = {f"{role}/{key}": value for role, state in states.items() for key, value in state.items()}
            save_file(flat, self.folder / "roles.safetensors")
        learners.leave()

    def continued(
        self, members: Sequence[int], checkpoint: str, file: str, before: Sequence[int] = ()
    ) -> None:
        """After updates by seeds `before`, or from a checkpoint: save it once more, and make one update."""
        if self.index not in members:
            return
        learner = self.learner("nlpo", members, checkpoint)
        if before:
            train(learner, "nlpo", before)
        else:
            learner.load(str(self.folder / checkpoint))
        (self.folder / file).mkdir(exist_ok=True)
        learner.save(str(self.folder / file))
        self.tell(f"{file}-next", learner, train(learner, "nlpo", [7]))
        learner.leave()

    def with_dropout(self, members: Sequence[int], file: str) -> None:
        """Two updates with dropout; each rank tells the seed that its last random numbers came from."""
        if self.index not in members:
            return
        rank = members.index(self.index)
        meeting = Rendezvous(rank, len(members), f"file://{self.folder}/{file}-meeting")
        learner = make_noisy(self.folder, meeting)
        self.tell(file, learner, train(learner, "supervised", [0, 1]))
        (self.folder / f"{file}-seed-{rank}.json").write_text(json.dumps(torch.initial_seed()))
        learner.leave()


def work(index: int, folder: str) -> None:
    """All that the tests look at, in one go: a process takes longer to start than to do it."""
    torch.set_num_threads(1)
    process = Process(index, Path(folder))
    for name in ALGORITHMS:
        process.updates(name, [0, 1, 2, 3])
    for place, name in enumerate(ALGORITHMS):
        process.updates(name, [0, 1] if place % 2 else [2, 3])
    for name in MEASURED:
        process.measures(name, [0, 1, 2, 3])
        process.measures(name, [1, 2])
    process.in_bfloat16([2, 3])
    process.pushed([0, 1])
    for name in ADAPTED:
        process.adapted(name, [1, 2])
    process.with_roles([0, 1])
    process.with_dropout([0, 1], "noisy")
    process.with_dropout([2, 3], "noisy-again")
    process.continued([0, 1], "", "of_two", before=[1, 2])
    process.continued([0, 1, 2], "of_one", "of_one_by_three")
    process.continued([0, 1, 2], "of_two", "of_two_by_three")
