"""Deployment of rewards and metrics on Ray Serve: one application each, and one more that speaks HTTP.

A run's plain graders may do without Serve, in processes beside the driver (`beside.py`).

Serve deploys, heals and deletes whole applications. With an application for each part, one that is redeployed
or fails to start leaves the others alone.

    HTTP ──▶ http ──┬──▶ reward-rouge     (replicas, queue, batches)
                    ├──▶ reward-length
    handle ─────────┴──▶ metric-rouge
"""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentResponse
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from contracts.errors import DeadlineExceeded, InputError, did_you_mean
from contracts.network.access import check_exposure, digest
from reward_servers.deadlines import check_deadlines
from reward_servers.part_checks import check_parts
from reward_servers.place import why_served
from reward_servers.serving.applications import HTTP_APPLICATION, QUIET, application_of, http_application
from reward_servers.serving.beside import Handle, end, start
from reward_servers.serving.deployments import deployment_name, handle_of, last_line, num_replicas
from reward_servers.settings import Part, RewardServersSettings
from reward_servers.user_rewards.trial import MADE_UP, Trial, Verdict, is_tried

QUIET_CONTROLLER = {"runtime_env": {"env_vars": {"RAY_SERVE_LOG_TO_STDERR": "0"}}}


def deploy(
    rewards: Sequence[Part],
    metrics: Sequence[Part],
    settings: RewardServersSettings,
    *,
    http: bool,
    token: str | None = None,
    beside: bool = False,
    trial: Trial = MADE_UP,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[str]:
    """Serve these parts on the connected Ray cluster until all answer; return warnings.

    Parts deployed before under other labels stay unchanged.

    Args:
        http: also answer at `http://{http_host}:{http_port}`, for exactly these parts.
        token: the token that every caller over HTTP must send; None: no token, on loopback alone.
        beside: graders that gain nothing from Serve run in processes beside this driver (`place.py`).
        meanwhile: called once, while the servers start.
        trial: the samples on which one replica of each of the user's own classes is tried.

    Raises:
        InputError: other machines could reach the host and there is no token; a part is wrong; its class
            can't be made (says the replica's error); or its answers are wrong.
        DeadlineExceeded: not all are up after `start_timeout_s`; names the missing ones.
    """
    check_parts("reward", rewards)
    check_parts("metric", metrics)
    settings.check_labels([part.label for part in (*rewards, *metrics)])
    check_deadlines(rewards, settings)
    if http:
        check_exposure(settings.http_host, token)
    graders = [("reward", part) for part in rewards] + [("metric", part) for part in metrics]
    end([deployment_name(kind, part.label) for kind, part in graders])  # from before
    served, handles = _start_beside(graders, settings) if beside else (graders, [])
    if served or http:
        _start_serve(settings, http)
    _run([_target(*grader, settings) for grader in served], settings.start_timeout_s, meanwhile)
    for handle in handles:
        handle.wait_until_up()
    warnings = _try_out(rewards, metrics, settings, trial)
    if http:
        key = None if token is None else digest(token)
        _run([_http_target(rewards, metrics, settings, key)], settings.start_timeout_s)
    return warnings


def scale(kind: str, label: str, replicas: int, timeout_s: float) -> None:
    """Give a deployed reward or metric this many replicas; return when they are up.

    Running replicas that stay, and other servers, are not interrupted. Serve's REST interface makes the same
    call, but needs Ray's dashboard, which is off here.

    Raises:
        InputError: nothing is deployed under this label, or it scales itself.
        DeadlineExceeded: not all are up after `timeout_s`.
    """
    name = deployment_name(kind, label)
    labels = [
        application.removeprefix(f"{kind}-")
        for application in serve.status().applications
        if application.startswith(kind)
    ]
    if name.removeprefix(f"{kind}-") not in labels:
        near = did_you_mean(label, labels) if labels else f", nor is any other {kind}"
        raise InputError(
            f"no {kind} '{label}' is served here{near}. Ray Serve has a run's plain {kind} only with "
            "reward_servers.LABEL.replicas=1"
        )
    try:
        controller = _get_global_client()._controller
        ray.get(controller.update_deployment_replicas.remote(DeploymentID(name, name), replicas))
    except RayTaskError as error:
        raise InputError(f"{name} can't be given {replicas} replicas: {error.cause}") from None
    deadline = time.monotonic() + timeout_s
    while (count := num_replicas(kind, label)) != replicas:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"waited {timeout_s:g} s for {name}: {count} of {replicas} replicas are up"
            )
        time.sleep(0.1)


def scale_what_runs(
    kind: str, label: str, replicas: int, timeout_s: float, on_joined: Callable[[str], None]
) -> None:
    """Join the cluster of RAY_ADDRESS, or the one last started on this machine, and call `scale` there.

    Args:
        on_joined: called with the address of the cluster's job server, if it has one.

    Raises:
        InputError: there is no cluster; otherwise as `scale`.
    """
    address = os.environ.get("RAY_ADDRESS", "auto")
    where = "on this machine" if address == "auto" else f"at RAY_ADDRESS={address}"
    nothing = InputError(f"neither `whetstone train` nor `serve` runs {where}: nothing to scale")
    host, _, port = address.rpartition(":")
    if port.isdecimal():  # Ray itself would try for minutes before it gives up
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError:
            raise nothing from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        context = ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        raise nothing from None
    try:
        if context.dashboard_url:
            on_joined(f"http://{context.dashboard_url}")
        scale(kind, label, replicas, timeout_s)
    finally:
        ray.shutdown()


def remove(rewards: Sequence[Part], metrics: Sequence[Part]) -> None:
    """End the processes and servers of these parts and no others; do nothing if none was started."""
    for kind, parts in (("reward", rewards), ("metric", metrics)):
        end([deployment_name(kind, part.label) for part in parts])
    with contextlib.suppress(RayServeException):
        for kind, parts in (("reward", rewards), ("metric", metrics)):
            for part in parts:
                serve.delete(deployment_name(kind, part.label), _blocking=False)


def shutdown() -> None:
    """End all servers of the cluster, and Serve itself."""
    serve.shutdown()


def _start_serve(settings: RewardServersSettings, http: bool) -> None:
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(
        proxy_location="HeadOnly" if http else "Disabled",
        http_options={"host": settings.http_host, "port": settings.http_port} if http else None,
        logging_config=QUIET,
        controller_options=QUIET_CONTROLLER,
    )


def _start_beside(
    graders: Sequence[tuple[str, Part]], settings: RewardServersSettings
) -> tuple[list[tuple[str, Part]], list[Handle]]:
    """Start the graders that gain nothing from Serve; return the other graders, and the handles."""
    served: list[tuple[str, Part]] = []
    handles: list[Handle] = []
    for kind, part in graders:
        server = settings.for_label(part.label)
        if why_served(kind, part, server) is None:
            handles.append(start(kind, part, server, settings.start_timeout_s))
        else:
            served.append((kind, part))
    return served, handles


def _target(kind: str, part: Part, settings: RewardServersSettings) -> serve.RunTarget:
    application, scales_itself = application_of(kind, part, settings.for_label(part.label))
    return serve.RunTarget(
        application,
        name=deployment_name(kind, part.label),
        route_prefix=None,
        logging_config=QUIET,
        external_scaler_enabled=not scales_itself,  # `scale` needs it
    )


def _http_target(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, key: bytes | None
) -> serve.RunTarget:
    application = http_application(rewards, metrics, settings, lambda: key)
    return serve.RunTarget(application, name=HTTP_APPLICATION, route_prefix="/", logging_config=QUIET)


def _run(
    targets: list[serve.RunTarget], timeout_s: float, meanwhile: Callable[[], None] = lambda: None
) -> None:
    if not targets:
        meanwhile()
        return
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    deadline = time.monotonic() + timeout_s
    meanwhile()
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


def _try_out(
    rewards: Sequence[Part], metrics: Sequence[Part], settings: RewardServersSettings, trial: Trial
) -> list[str]:
    """Call each of the user's own classes once, all in parallel; return warnings.

    Raises:
        InputError: an answer is wrong or missing; then none of the parts is served.
    """
    tried = [("reward", part) for part in rewards if is_tried(part)]
    tried += [("metric", part) for part in metrics if is_tried(part)]
    calls = [
        (kind, part, handle_of(kind, part.label).try_out.remote(trial.for_grader(kind, part.label)))
        for kind, part in tried
    ]
    verdicts = [
        _verdict(f"{kind} {part.label}", call, settings.for_label(part.label).timeout_s)
        for kind, part, call in calls
    ]
    if any(verdict.refusal for verdict in verdicts):
        remove(rewards, metrics)
    for verdict in verdicts:
        verdict.check()
    return [verdict.warning for verdict in verdicts if verdict.warning]


def _verdict(name: str, call: DeploymentResponse, timeout_s: float) -> Verdict:
    try:
        verdict: Verdict = call.result(timeout_s=timeout_s)
        return verdict
    except TimeoutError:
        more = "raise reward_servers.default.timeout_s"
        return Verdict(refusal=f"{name}: no answer for two texts within {timeout_s:g} s; {more}")
    except (RayError, RayServeException) as error:
        return Verdict(refusal=f"{name}: its process died in a call of two texts ({type(error).__name__})")


def _is_running(name: str, application: ApplicationStatusOverview | None) -> bool:
    if application is None:
        return False
    if application.status == ApplicationStatus.DEPLOY_FAILED:
        raise InputError(f"{name} did not start: {last_line(_state(application))}")
    return application.status == ApplicationStatus.RUNNING


def _state(application: ApplicationStatusOverview | None) -> str:
    if application is None:
        return "not created"
    messages = [application.message, *(deployment.message for deployment in application.deployments.values())]
    return " ".join([application.status.value, *(message for message in messages if message)])
