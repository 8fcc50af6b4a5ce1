"""`whetstone plan [OVERRIDES]`: what `whetstone train` would do, need and read, with nothing started."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.redaction import without_secrets
from reward_servers.apart import try_apart
from services import preflight
from services.annotated_data import with_iterations
from services.compose import run_settings
from services.cut_prompts import said_of_limits
from services.doing import doing
from services.environment_checks import environment_warnings
from services.machine import find_gpus, num_cores
from services.memory import GIB, available_bytes
from services.mirror import open_mirror
from services.plan_arithmetic import arithmetic, dropout
from services.plan_memory import Amount, amounts, num_parameters, total_bytes
from services.plan_processes import Machine, Processes, processes
from services.plan_sources import sources
from services.run_claim import plain
from services.run_folder import RunFolder
from services.settings import RunSettings
from services.tasks.base import SPLITS

HELP = """whetstone plan [KEY=VALUE …]: what whetstone train with the same words would do, need and read

Everything that train checks is checked, and nothing is started, loaded or written: exit code 0 means that
train would start, 2 that something is wrong, with the same message. Rewards and metrics of your own are
called with two texts, in a process that ends at once. whetstone train --help names the keys."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that could start, told before it does.

    Example: `make_plan(["experiment=demo", "model.path=runs/demo-start-model"]).words["run"]` is
    "80 iterations = 10,240 rollouts and …".
    """

    settings: RunSettings
    folder: RunFolder
    done: int  # iterations that a run in this folder, or in its mirror, has behind it
    machine: Machine
    num_parameters: int | None
    is_estimated: bool  # the number of parameters: the weights are still on the hub
    processes: list[Processes]
    memory: list[Amount]
    words: Mapping[str, str]
    sources: Mapping[str, str]
    warnings: list[str]

    @property
    def total_bytes(self) -> float:
        return total_bytes(self.memory, self.settings.rollout.num_workers)


def run(argv: Sequence[str]) -> int:
    """The command: prints the plan, and returns 0."""
    from services.plan_screen import show

    if {"-h", "--help"} & set(argv):
        print(HELP)
        return 0
    with doing("checking settings, model and data"):
        plan = make_plan(list(argv))
    show(plan)
    return 0


def make_plan(overrides: list[str]) -> Plan:
    """Check all that `whetstone train` checks, and say what it would do.

    Raises:
        InputError: train would refuse this run, with the same message.
    """
    settings = run_settings(overrides)
    checked = preflight.check(settings)
    settings = with_iterations(settings)
    folder, done = _look(settings)
    told = try_apart(settings.reward, settings.metrics, settings.reward_servers, checked.trial)
    model, machine = checked.model, this_machine()
    count, is_estimated = num_parameters(model)
    memory = amounts(settings, model, machine)
    return Plan(
        settings=settings,
        folder=folder,
        done=done,
        machine=machine,
        num_parameters=count,
        is_estimated=is_estimated,
        processes=processes(settings, model, machine),
        memory=memory,
        words={
            "prompts": _prompts(settings),
            **arithmetic(settings, checked.num_prompts),
            "dropout": dropout(settings, model.config),
        },
        sources=sources(settings, overrides, model, folder),
        warnings=checked.warnings + environment_warnings(settings) + _tight(settings, machine, memory) + told,
    )


def _prompts(settings: RunSettings) -> str:
    return said_of_limits({split: settings.prompt_limit(split) for split in SPLITS})


def _look(settings: RunSettings) -> tuple[RunFolder, int]:
    """The run's folder, and the iterations that are done; nothing is written or restored."""
    config = settings.resolved()
    folder = RunFolder.look(settings.output_dir, settings.run_name, config=config, resume=settings.resume)
    done = list(folder.checkpoints())
    asked = without_secrets(plain(config))
    if (mirror := open_mirror(settings.mirror, folder.path, asked, settings.resume)) is not None:
        done += mirror.complete()
    return folder, max(done, default=0)


def this_machine() -> Machine:
    gpus = find_gpus()
    return Machine(num_cores(), len(gpus.names) if gpus.usable else 0, os.environ.get("RAY_ADDRESS") or None)


def _tight(settings: RunSettings, machine: Machine, memory: list[Amount]) -> list[str]:
    """Where the estimate, activations included, is more than there is; the least that is needed is there."""
    needed, there = total_bytes(memory, settings.rollout.num_workers), available_bytes()
    if machine.cluster or machine.num_gpus or needed <= there:
        return []
    return [
        f"with activations this may take {needed / GIB:.1f} GiB, and {there / GIB:.1f} GiB are available: "
        "lower learner.token_budget or learner.logits_budget, or set model.gradient_checkpointing=true"
    ]
