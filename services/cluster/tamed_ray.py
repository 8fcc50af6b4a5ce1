"""Change Ray's start on this machine and its treatment of the driver, for a time.

Ray 2.60 lacks settings for six behaviours, so `tamed` replaces its functions.
"""

import contextlib
import errno
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from ray._private import node, ray_constants, services, utils

from contracts.errors import RunError
from services.cluster.ray_daemons import LOOK_S, has_ended, last_words
from services.cluster.ray_variables import PATIENCE_S, PATIENT, patient

PORTS = range(20_000, 32_000)
LISTENS = "dashboard_agent_listen_port"
OF_AGENTS = (LISTENS, "metrics_agent_port", "metrics_export_port", "runtime_env_agent_port")


@contextlib.contextmanager
def raylets_wait(seconds: int) -> Iterator[None]:
    """Set how long raylets started in this context wait for their processes, unless the user did."""
    waits = {name: value for name, value in patient(seconds).items() if os.environ.get(name) == PATIENT[name]}
    os.environ.update(waits)
    try:
        yield
    finally:
        os.environ.update({name: PATIENT[name] for name in waits})


@contextlib.contextmanager
def tamed(patience_s: int = PATIENCE_S) -> Iterator[None]:
    """Change Ray's treatment of the driver within this context.

    - Ray's processes start in a separate session. So signals to this process's group reach only the
      driver, which still needs these processes to save.
    - Ray sets no signal handlers, neither in Python nor in C, where SIGTERM would abort the driver.
    - Ray waits for a slow raylet, but not for a dead one.
    - A raylet knows its agents' ports. If agents chose their own, it would die after 15 seconds without them.
    - Ray starts no autoscaler, because the machine never becomes two.
    """
    replaced: list[tuple[Any, str, Any]] = [
        (utils, "set_kill_on_parent_death_linux", _in_new_session(utils.set_kill_on_parent_death_linux)),
        (utils, "set_sigterm_handler", lambda handler: None),
        (ray_constants, "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", True),
        (node.Node, "start_monitor", lambda self: None),
        (services, "start_raylet", _with_ports(services.start_raylet)),
        (services, "get_node", _patiently(services.get_node, patience_s)),
        # Ray tries about once a second. If the head service is dead, Ray uses all tries.
        (ray_constants, "NUM_REDIS_GET_RETRIES", patience_s // 3),
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, ours in replaced:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for module, name, theirs in kept:
            setattr(module, name, theirs)


def _in_new_session(prepare: Callable[[], None]) -> Callable[[], None]:
    """Return the function that Ray calls in each new process before it executes another program."""

    def call() -> None:
        os.setsid()
        prepare()

    return call


def _with_ports(start_raylet: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Ray's start of a raylet so that agents and raylet get free ports for the agents' services."""

    def start(*arguments: Any, **named: Any) -> Any:
        ports = dict(zip(OF_AGENTS, _free_ports(len(OF_AGENTS)), strict=True))
        start_process = services.start_ray_process
        unsaid = f"--{LISTENS}={ports[LISTENS]}"  # the raylet knows this option, but Ray never sets it

        def with_port(command: list[str], *rest: Any, **more: Any) -> Any:
            return start_process([*command, unsaid], *rest, **more)

        services.start_ray_process = with_port
        try:
            return start_raylet(*arguments, **{**named, **ports})
        finally:
            services.start_ray_process = start_process

    return start


def _free_ports(count: int) -> list[int]:
    """Return free ports below the range of outgoing connections."""
    with contextlib.ExitStack() as held:
        free: list[int] = []
        while len(free) < count:
            port = random.SystemRandom().choice(PORTS)
            try:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # there is no port, or no socket, to be had
                    raise
            else:
                free.append(port)
        return free


def _patiently(get_node: Callable[[str, str], Any], patience_s: int) -> Callable[[str, str], Any]:
    """Wrap Ray's look-up of the new node so that it waits for the node.

    Raises:
        RunError: the raylet ended, or was not up after `patience_s`.
    """
    deadline = time.monotonic() + patience_s

    def wait_for_node(gcs_address: str, node_id: str) -> Any:
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if has_ended():
                    raise RunError(f"its raylet ended while it started{last_words()}") from None
                if time.monotonic() > deadline:
                    raise RunError(f"its raylet was not up after {patience_s} s{last_words()}") from None
            time.sleep(LOOK_S)

    return wait_for_node
