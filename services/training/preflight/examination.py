"""Examine this machine for `whetstone doctor`: hardware, packages, ports, and a run's defaults.

torch is imported only if a GPU exists.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.components import find
from reward_servers.graders import METRICS, REWARDS
from reward_servers.requirements import REQUIREMENTS, requires
from rollout_workers.engines.choice import choose_dtype, choose_engine
from rollout_workers.engines.traits import traits_of
from services.training.preflight.installation import (
    IMAGE_AND_SOUND,
    VLLM_PACKAGES,
    image_and_sound,
    installed_versions,
    packages,
    python,
    vllm_package,
)
from services.training.preflight.machine import (
    Finding,
    Gpus,
    cores,
    disk,
    find_gpus,
    gpu,
    memory,
    num_cores,
    port,
    shared_memory,
    threads_each,
)

PORTS = {8000: "whetstone serve", 8265: "Ray's dashboard"}


def examine(folder: Path | None = None) -> list[Finding]:
    """Return all findings, in the order of reading."""
    gpus = find_gpus()
    installed = installed_versions((*VLLM_PACKAGES, *IMAGE_AND_SOUND, "torch"))
    return [
        cores(),
        memory(),
        disk(folder or Path.cwd()),
        shared_memory(),
        gpu(gpus),
        python(),
        *packages(),
        vllm_package(installed, has_gpu=gpus.usable),
        *image_and_sound(installed),
        *graders(),
        *(port(number, user) for number, user in PORTS.items()),
        plan(installed, gpus),
    ]


def graders() -> list[Finding]:
    """Check packages and data that only some rewards and metrics require."""
    users: dict[str, set[str]] = {}
    for kind, table in (("reward", REWARDS), ("metric", METRICS)):
        for name in table:
            for package in requires(find(kind, name, table)):
                users.setdefault(package, set()).add(name)
    return [_grader(name, sorted(names)) for name, names in sorted(users.items())]


def _grader(name: str, users: Sequence[str]) -> Finding:
    needed, wanted_by = REQUIREMENTS[name], f"for {', '.join(users)}"
    if needed.is_there():
        return Finding(name, "ok", wanted_by)
    return Finding(name, "warning", f"missing: {needed.what}, {wanted_by}", needed.remedy)


def plan(installed: Mapping[str, str | None], gpus: Gpus) -> Finding:
    """Describe a run's default engine, device, number format and threads."""
    has_vllm = any(installed.get(name) for name in VLLM_PACKAGES)
    engine = choose_engine("auto", is_encoder_decoder=False, has_vllm=has_vllm)
    device, dtype = "GPU" if gpus.usable else "CPU", choose_dtype("auto", on_gpu=gpus.usable)
    count = threads_each(num_cores())
    threads = f"{count} thread{'s' * (count > 1)}"
    address = os.environ.get("RAY_ADDRESS")
    where = f", in the Ray cluster at {address}" if address else ""
    small = " (transformers for small models)" if engine == "vllm" and not gpus.usable else ""
    return Finding(
        "a run uses", "ok", f"{traits_of(engine).title}{small} on the {device}, {dtype}, {threads}{where}"
    )
