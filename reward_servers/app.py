"""The rewards and metrics on Ray Serve: one application each, and one more that speaks HTTP.

An application of its own for each part, rather than one for all: Serve deploys, heals and deletes
whole applications, so that a part which is redeployed or fails to start leaves the others alone.

    HTTP ──▶ http ──┬──▶ reward-rouge     (replicas, queue, batches)
                    ├──▶ reward-length
    handle ─────────┴──▶ metric-rouge
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from contracts.errors import DeadlineExceeded, InputError, did_you_mean
from reward_servers.client import RemoteServer, deployment_name, num_replicas
from reward_servers.http import http_app
from reward_servers.replicas import MetricReplica, RewardReplica
from reward_servers.server import check_parts
from reward_servers.settings import Part, RewardServersSettings

HTTP_APPLICATION = "http"
# Serve's own lines go to its log files; the console keeps what the client and the graders say.
QUIET = {"log_level": "ERROR", "enable_access_log": False}
QUIET_CONTROLLER = {"runtime_env": {"env_vars": {"RAY_SERVE_LOG_TO_STDERR": "0"}}}
# A constructor fails for a reason that a second try rarely changes, such as a missing model.
START_TRIES = 2


def deploy(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, *, http: bool
) -> None:
    """Serve these on the Ray cluster that this process is connected to; returns when all answer.

    What was deployed before under other labels stays as it is.

    Args:
        http: also answer at `http://{http_host}:{http_port}`, for exactly these parts.

    Raises:
        InputError: a part is wrong, or its class cannot be made (with the replica's own error).
        DeadlineExceeded: not all are up after `start_timeout_s`; names those that are missing.
    """
    check_parts("reward", rewards)
    check_parts("metric", metrics)
    settings.check_labels([part.label for part in (*rewards, *metrics)])
    _start_serve(settings, http)
    _run(
        [_target("reward", part, settings) for part in rewards]
        + [_target("metric", part, settings) for part in metrics],
        settings.start_timeout_s,
    )
    if http:
        _run([_http_target(rewards, metrics, settings)], settings.start_timeout_s)


def scale(kind: str, label: str, replicas: int, timeout_s: float) -> None:
    """Give a deployed reward or metric this many replicas; returns when they are up.

    Those that run go on running, and no other server notices. Serve's REST interface does it by the same
    call; that needs Ray's dashboard, which is off here.

    Raises:
        InputError: nothing is deployed under this label, or it scales itself.
        DeadlineExceeded: not all are up after `timeout_s`.
    """
    name = deployment_name(kind, label)
    labels = [each.removeprefix(f"{kind}-") for each in serve.status().applications if each.startswith(kind)]
    if label not in labels:
        raise InputError(f"no {kind} '{label}' is served here{did_you_mean(label, labels)}")
    try:
        controller = _get_global_client()._controller
        ray.get(controller.update_deployment_replicas.remote(DeploymentID(name, name), replicas))
    except RayTaskError as error:
        raise InputError(f"{name} can't be given {replicas} replicas: {error.cause}") from None
    deadline = time.monotonic() + timeout_s
    while (found := num_replicas(kind, label)) != replicas:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"waited {timeout_s:g} s for {name}: {found} of {replicas} replicas are up"
            )
        time.sleep(0.1)


def scale_what_runs(kind: str, label: str, replicas: int, timeout_s: float) -> None:
    """`scale` from outside: on the cluster of RAY_ADDRESS, or the one last started on this machine.

    Raises:
        InputError: there is none; otherwise as `scale`.
    """
    address = os.environ.get("RAY_ADDRESS", "auto")
    where = "on this machine" if address == "auto" else f"at RAY_ADDRESS={address}"
    nothing = InputError(f"neither `whetstone train` nor `serve` runs {where}: nothing to scale")
    host, _, port = address.rpartition(":")
    if port.isdecimal():  # Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError:
            raise nothing from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        raise nothing from None
    try:
        scale(kind, label, replicas, timeout_s)
    finally:
        ray.shutdown()


def shutdown() -> None:
    """End all servers of the cluster, and Serve itself."""
    serve.shutdown()


def serve_until_interrupted(
    rewards: Sequence[Part],
    metrics: Sequence[Part],
    settings: RewardServersSettings,
    on_ready: Callable[[], None],
) -> None:
    """Deploy with HTTP on the cluster of RAY_ADDRESS, or on this machine; end at Ctrl-C or SIGTERM."""
    joined = "RAY_ADDRESS" in os.environ
    logging.getLogger("ray").setLevel(logging.ERROR)
    if joined:
        ray.init(logging_level=logging.ERROR)
    else:
        ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR)
    # After ray.init, which sets a handler of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        deploy(rewards, metrics, settings, http=True)
        on_ready()
        threading.Event().wait()
    except KeyboardInterrupt:
        pass  # the way to end it
    finally:
        if joined:
            shutdown()
        ray.shutdown()


def _start_serve(settings: RewardServersSettings, http: bool) -> None:
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(
        proxy_location="HeadOnly" if http else "Disabled",
        http_options={"host": settings.http_host, "port": settings.http_port} if http else None,
        logging_config=QUIET,
        controller_options=QUIET_CONTROLLER,
    )


def _target(kind: str, part: Part, settings: RewardServersSettings) -> serve.RunTarget:
    own = settings.for_label(part.label)
    name = deployment_name(kind, part.label)
    scaling: dict[str, Any] = {"num_replicas": own.most_replicas}
    if own.replicas is None and own.min_replicas < own.max_replicas:
        scaling = {
            "autoscaling_config": {
                "min_replicas": own.min_replicas,
                "max_replicas": own.max_replicas,
                "target_ongoing_requests": own.target_ongoing_requests,
            }
        }
    deployment = serve.deployment(RewardReplica if kind == "reward" else MetricReplica).options(
        name=name,
        ray_actor_options={"num_cpus": own.num_cpus, "num_gpus": own.num_gpus},
        max_ongoing_requests=own.max_ongoing_requests,
        max_queued_requests=own.max_queued_requests,
        health_check_period_s=2.0,  # a lost replica is replaced within seconds
        graceful_shutdown_timeout_s=5.0,
        graceful_shutdown_wait_loop_s=0.1,
        max_constructor_retry_count=START_TRIES,
        **scaling,
    )
    application = deployment.bind(part, own) if kind == "reward" else deployment.bind(part)
    return serve.RunTarget(
        application,
        name=name,
        route_prefix=None,
        logging_config=QUIET,
        external_scaler_enabled="num_replicas" in scaling,  # what `scale` asks for
    )


def _http_target(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings
) -> serve.RunTarget:
    def build() -> FastAPI:  # runs in the replica, where the handles are needed
        def servers(kind: str, parts: Sequence[Part]) -> dict[str, RemoteServer]:
            return {
                part.label: RemoteServer(
                    kind, part.label, settings.for_label(part.label), settings.retries, refuse_when_full=True
                )
                for part in parts
            }

        return http_app(servers("reward", rewards), servers("metric", metrics))

    deployment = serve.deployment(serve.ingress(build)()).options(
        name=HTTP_APPLICATION,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,  # it only waits for others; their own queues set the limits
        graceful_shutdown_timeout_s=5.0,
        max_constructor_retry_count=START_TRIES,
    )
    return serve.RunTarget(deployment.bind(), name=HTTP_APPLICATION, route_prefix="/", logging_config=QUIET)


def _run(targets: list[serve.RunTarget], timeout_s: float) -> None:
    if not targets:
        return
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    deadline = time.monotonic() + timeout_s
    waiting = {target.name for target in targets}
    while waiting:
        applications = serve.status().applications
        for name in sorted(waiting):
            if _is_running(name, applications.get(name)):
                waiting.remove(name)
        if waiting and time.monotonic() > deadline:
            missing = "; ".join(f"{name} ({_state(applications.get(name))})" for name in sorted(waiting))
            raise DeadlineExceeded(
                f"waited {timeout_s:g} s (reward_servers.start_timeout_s) for {len(targets)} servers to "
                f"start; not up: {missing}"
            )
        time.sleep(0.1)


def _is_running(name: str, application: ApplicationStatusOverview | None) -> bool:
    if application is None:
        return False
    if application.status == ApplicationStatus.DEPLOY_FAILED:
        raise InputError(f"{name} did not start: {_last_line(_state(application))}")
    return application.status == ApplicationStatus.RUNNING


def _state(application: ApplicationStatusOverview | None) -> str:
    if application is None:
        return "not created"
    messages = [application.message, *(each.message for each in application.deployments.values())]
    return " ".join([application.status.value, *(message for message in messages if message)])


def _last_line(traceback: str) -> str:
    """What was raised at the end of it, without the place of our own errors."""
    return traceback.strip().splitlines()[-1].removeprefix("contracts.errors.InputError: ")
