"""Serve rewards and metrics over HTTP until a signal ends it."""

import contextlib
import os
import socket
from collections.abc import Sequence

from contracts.errors import InputError
from contracts.network.access import TOKEN
from reward_servers.settings import Part, RewardServersSettings
from services.terminal.doing import doing, to_stderr
from services.terminal.interrupts import Interrupted, StopRequest


def serve(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, token: str | None
) -> None:
    """Start Ray and the reward servers; return after Ctrl-C or SIGTERM."""
    print(f"Starting {len(rewards)} rewards and {len(metrics)} metrics …", flush=True)
    welcome = _welcome(rewards, metrics, settings, token is not None)
    with doing("loading Ray"):
        from reward_servers.serving.actor_watch import controller, watched
        from reward_servers.serving.app import deploy, shutdown
        from services.cluster.ray_cluster import cluster

    stop = StopRequest()
    with contextlib.ExitStack() as ends:
        with doing("starting Ray"):
            ends.enter_context(cluster(to_stderr, log_to_driver=True))
        ends.enter_context(watched([controller(settings)], lambda fault: to_stderr(f"warning: {fault}")))
        if "RAY_ADDRESS" in os.environ:
            ends.callback(shutdown)
        with doing("starting the servers"):
            for warning in deploy(rewards, metrics, settings, http=True, token=token):
                to_stderr(f"warning: {warning}")
        ends.callback(stop.restore)
        stop.hold()
        print(welcome, flush=True)
        with contextlib.suppress(Interrupted):  # the normal end
            stop.wait()


def check_port(settings: RewardServersSettings) -> None:
    """Check that the address can be listened on.

    Raises:
        InputError: the port is taken, or the host is not this machine.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.http_host, settings.http_port))
        except OSError as error:
            address = f"{settings.http_host}:{settings.http_port}"
            raise InputError(
                f"can't listen on {address}: {error.strerror}; choose another --host or --port"
            ) from None


def _welcome(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, asks: bool
) -> str:
    address = f"http://{settings.http_host}:{settings.http_port}"
    route, label = ("score", rewards[0].label) if rewards else ("metric", metrics[0].label)
    header = f' -H "Authorization: Bearer ${TOKEN}"' if asks else ""
    body = '{"samples": [{"text": "1 2 3", "references": ["1 2 4"]}]}'
    return (
        f"Serving at {address}\n"
        f"  rewards  {', '.join(part.label for part in rewards) or 'none'}\n"
        f"  metrics  {', '.join(part.label for part in metrics) or 'none'}\n"
        f"  schema   {address}/schema\n"
        f"Try:\n  curl{header} {address}/{route}/{label} -d '{body}'\n"
        "Ctrl-C stops."
    )
