"""Builders of the Serve applications of rewards and metrics, for `deploy` and for a Serve configuration.

    import_path: reward_servers.serving.applications:reward   args: {part: {name: rouge}, server: {…}}
    import_path: reward_servers.serving.applications:metric   args: {part: {name: rouge}}
    import_path: reward_servers.serving.applications:http     args: {rewards: [rouge], metrics: [rouge]}

The application of a part must have the name of its deployment: `reward-rouge`, `metric-rouge`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.deployment import Application

from contracts.errors import InputError
from contracts.network.access import TOKEN, TOKEN_FILE, digest, token_of
from contracts.settings import build
from reward_servers.part_checks import check_parts
from reward_servers.serving.client import RemoteServer
from reward_servers.serving.deployments import deployment_name
from reward_servers.serving.http import http_app
from reward_servers.serving.ray_job import replica_environment
from reward_servers.serving.replicas import MetricReplica, RewardReplica
from reward_servers.settings import Part, RewardServersSettings, ServerSettings, parts

HTTP_APPLICATION = "http"
# Serve writes its own lines to its log files; the console keeps those of the client and the graders.
QUIET = {"log_level": "ERROR", "enable_access_log": False}
# A lost replica is replaced within seconds; a hanging one after three time-outs, about 20 s.
HEALTH_CHECKS: dict[str, Any] = {"health_check_period_s": 2.0, "health_check_timeout_s": 5.0}
# A constructor usually fails for a lasting reason, such as a missing model.
START_TRIES = 2
# When everything is deployed at once, the HTTP application starts only after all others are up.
PATIENT_TRIES = 100


def reward(args: Mapping[str, Any]) -> Application:
    """Build the application of one reward from a Serve configuration."""
    return _from_configuration("reward", args)


def metric(args: Mapping[str, Any]) -> Application:
    """Build the application of one metric from a Serve configuration."""
    return _from_configuration("metric", args)


def http(args: Mapping[str, Any]) -> Application:
    """Build the HTTP application of the named parts from a Serve configuration; callers need the token."""
    settings = build(RewardServersSettings, dict(args.get("reward_servers", {})), "reward_servers")
    rewards, metrics = (parts(args.get(kind), kind) for kind in ("rewards", "metrics"))
    return http_application(rewards, metrics, settings, _own_token, PATIENT_TRIES)


def _from_configuration(kind: str, args: Mapping[str, Any]) -> Application:
    (part,) = parts(args.get("part"), kind)
    check_parts(kind, [part])
    settings = build(ServerSettings, dict(args.get("server", {})), f"{kind} {part.label}")
    return application_of(kind, part, settings)[0]


def _own_token() -> bytes:
    token = token_of()
    if token is None:
        raise InputError(
            f"a cluster's service is open to others: set {TOKEN} or {TOKEN_FILE} for its replicas"
        )
    return digest(token)


def application_of(kind: str, part: Part, settings: ServerSettings) -> tuple[Application, bool]:
    """Build the application that serves one part; return it, and whether it scales itself."""
    scaling: dict[str, Any] = {"num_replicas": settings.most_replicas}
    if settings.replicas is None and settings.min_replicas < settings.max_replicas:
        scaling = {
            "autoscaling_config": {
                "min_replicas": settings.min_replicas,
                "max_replicas": settings.max_replicas,
                "target_ongoing_requests": settings.target_ongoing_requests,
            }
        }
    deployment = serve.deployment(RewardReplica if kind == "reward" else MetricReplica).options(
        name=deployment_name(kind, part.label),
        ray_actor_options={
            "num_cpus": settings.num_cpus,
            "num_gpus": settings.num_gpus,
            "runtime_env": replica_environment(settings.num_gpus),
        },
        max_ongoing_requests=settings.max_ongoing_requests,
        max_queued_requests=settings.max_queued_requests,
        **HEALTH_CHECKS,
        graceful_shutdown_timeout_s=5.0,
        graceful_shutdown_wait_loop_s=0.1,
        max_constructor_retry_count=START_TRIES,
        **scaling,
    )
    application = deployment.bind(part, settings) if kind == "reward" else deployment.bind(part)
    return application, "num_replicas" not in scaling


def http_application(
    rewards: Sequence[Part],
    metrics: Sequence[Part],
    settings: RewardServersSettings,
    key: Callable[[], bytes | None],
    tries: int = START_TRIES,
) -> Application:
    """Build the application that speaks HTTP for these parts, wherever on the cluster they are deployed.

    Args:
        key: called in the replica; returns the token's digest, or None if no token is required.
        tries: the number of starts before Serve gives up.
    """

    def build() -> FastAPI:  # runs in the replica, where the handles are needed
        def servers(kind: str, parts: Sequence[Part]) -> dict[str, RemoteServer]:
            return {
                part.label: RemoteServer(
                    *(kind, part.label, settings.for_label(part.label), settings.retries),
                    refuse_when_full=True,
                    patience_s=settings.patience_s([part.label]),
                )
                for part in parts
            }

        return http_app(servers("reward", rewards), servers("metric", metrics), key(), settings.http_host)

    deployment = serve.deployment(serve.ingress(build)()).options(
        name=HTTP_APPLICATION,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,  # it only waits for the other servers, whose queues set the limits
        **HEALTH_CHECKS,
        graceful_shutdown_timeout_s=5.0,
        max_constructor_retry_count=tries,
    )
    return deployment.bind()
