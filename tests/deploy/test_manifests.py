"""The manifests for Kubernetes and Slurm start this repository's commands in matching images.

Where KubeRay's schemas lie beside the repository, the manifests are held against them.
"""

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.job_submission import JobDetails, JobStatus

from contracts.network.access import TOKEN
from reward_servers.serving.deployments import deployment_name
from reward_servers.settings import ServerSettings, parts
from services.cli import COMMANDS
from services.cluster.jobs import STOP_WAIT_S, _is_ours, _job
from services.config.compose import run_settings

ROOT = Path(__file__).parents[2]
KUBERAY = ROOT / "deploy/kuberay"
SCHEMAS = ROOT.parent / "shared/schemas/kuberay"
KINDS = {"rayjob": "rayjobs", "raycluster": "rayclusters", "rayservice": "rayservices"}


def manifest(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = yaml.safe_load((KUBERAY / f"{name}.yaml").read_text())
    return fields


def cluster(name: str) -> dict[str, Any]:
    spec = manifest(name)["spec"]
    ray_cluster: dict[str, Any] = spec.get("rayClusterSpec", spec.get("rayClusterConfig", spec))
    return ray_cluster


def groups(name: str) -> Iterator[dict[str, Any]]:
    yield cluster(name)["headGroupSpec"]
    yield from cluster(name)["workerGroupSpecs"]


def containers(name: str) -> Iterator[dict[str, Any]]:
    for group in groups(name):
        yield from group["template"]["spec"]["containers"]


def closed(schema: Any) -> Any:
    """The schema, refusing keys that it does not name; as published it lets any through."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    fields = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        fields.setdefault("additionalProperties", False)
    return fields


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="KubeRay's schemas are not beside the repository")
@pytest.mark.parametrize("name", KINDS)
def test_a_manifest_fits_kuberays_schema(name: str) -> None:
    schema = closed(json.loads((SCHEMAS / f"{KINDS[name]}.v1.schema.json").read_text()))
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(manifest(name))] == []
    misspelt = manifest(name)
    misspelt["spec"]["rayClusterSpek"] = {}
    assert any("rayClusterSpek" in error.message for error in validator.iter_errors(misspelt))


@pytest.mark.parametrize("name", KINDS)
def test_images_are_those_of_the_dockerfiles_and_ray_is_the_pinned_one(name: str) -> None:
    images = {container["image"] for container in containers(name)}
    assert images and {ROOT / f"deploy/Dockerfile.{image.partition(':')[2]}" for image in images} <= set(
        ROOT.glob("deploy/Dockerfile.*")
    )
    pins = (ROOT / "requirements/cuda.txt").read_text().split()
    assert f"ray=={cluster(name)['rayVersion']}" in pins


@pytest.mark.parametrize("name", KINDS)
def test_clusters_ask_for_a_token_and_grow_within_their_bounds(name: str) -> None:
    assert cluster(name)["authOptions"] == {"mode": "token"}
    assert cluster(name)["enableInTreeAutoscaling"] is True
    for group in cluster(name)["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert any(group["minReplicas"] < group["maxReplicas"] for group in cluster(name)["workerGroupSpecs"])
    all_limits = [container["resources"]["limits"] for container in containers(name)]
    assert any("nvidia.com/gpu" in limits for limits in all_limits)
    assert [container["resources"]["requests"] for container in containers(name)] == all_limits


@pytest.mark.parametrize("name", KINDS)
def test_what_is_mounted_is_a_volume_of_the_pod(name: str) -> None:
    for group in groups(name):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


@pytest.mark.parametrize("name", ["rayjob", "raycluster"])
def test_pods_that_train_save_before_they_go(name: str) -> None:
    """Pods of a cluster that scales may go while idle: only the head's is kept there."""
    head, gpus, rewards = groups(name)
    if name == "raycluster":
        assert "lifecycle" not in gpus["template"]["spec"]["containers"][0]
    for group in (head, gpus) if name == "rayjob" else (head,):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        command = container["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert shlex.split(command)[:4] == ["whetstone", "submit", "stop", "all"]
        assert pod["terminationGracePeriodSeconds"] >= STOP_WAIT_S
    assert "lifecycle" not in rewards["template"]["spec"]["containers"][0]


def test_the_jobs_command_is_a_run_that_composes() -> None:
    spec = manifest("rayjob")["spec"]
    program, command, *overrides = shlex.split(spec["entrypoint"])
    assert program == "whetstone" and command == "train" and command in COMMANDS
    settings = run_settings(overrides)
    gpus = cluster("rayjob")["workerGroupSpecs"][0]
    per_pod = int(gpus["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert settings.rollout.num_workers + 1 == per_pod * gpus["replicas"]  # and the learner
    mounts = [mount for container in containers("rayjob") for mount in container["volumeMounts"]]
    mounted = {mount["mountPath"] for mount in mounts}
    assert any(settings.output_dir.startswith(path) for path in mounted)
    variables = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert variables == {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}
    assert spec["backoffLimit"] > 0 and settings.resume == "auto"


def test_the_job_is_one_that_submit_stops_and_resumes() -> None:
    spec = manifest("rayjob")["spec"]
    details = JobDetails(
        type="SUBMISSION",
        submission_id="first-1",
        status=JobStatus.RUNNING,
        entrypoint=spec["entrypoint"],
        metadata=spec["metadata"],
    )
    _, _, *words = shlex.split(spec["entrypoint"])
    settings = run_settings(words)
    assert _is_ours(details) and list(_job(details).overrides) == words
    assert _job(details).folder == f"{settings.output_dir}/{settings.run_name}"


def test_the_services_applications_are_named_as_their_parts_and_reached_by_http() -> None:
    configuration = yaml.safe_load(manifest("rayservice")["spec"]["serveConfigV2"])
    named: dict[str, list[str]] = {"reward": [], "metric": []}
    (http,) = (application for application in configuration["applications"] if application["name"] == "http")
    for application in configuration["applications"]:
        module, _, function = application["import_path"].partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        if application is http:
            continue
        (part,) = parts(application["args"]["part"])
        ServerSettings(**application["args"]["server"])
        assert application["name"] == deployment_name(function, part.label)
        assert application["route_prefix"] is None
        named[function].append(part.label)
    assert {"rewards": named["reward"], "metrics": named["metric"]} == http["args"]


def test_the_services_pods_have_the_token_from_a_secret() -> None:
    for container in containers("rayservice"):
        (variable,) = (one for one in container["env"] if one["name"] == TOKEN)
        assert "value" not in variable and variable["valueFrom"]["secretKeyRef"]["name"]


def test_the_slurm_script_is_a_shell_script_that_signals_the_run_alone() -> None:
    script = ROOT / "deploy/slurm/train.sbatch"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert re.search(r"^#SBATCH --signal=B:USR1@\d+$", text, re.MULTILINE)  # B: the script, not Ray
    assert 'whetstone train "output_dir=' in text and "set -euo pipefail" in text
    (ahead_s,) = map(int, re.findall(r"USR1@(\d+)", text))
    assert ahead_s >= 120
    assert "RAY_AUTH_TOKEN=" not in text  # on no command line, and in no exported value


def test_a_slurm_job_whose_start_fails_leaves_no_token_behind(tmp_path: Path) -> None:
    """Slurm's `scontrol` looks whether the token is there, and fails."""
    files = {
        tmp_path / ".venv/bin/activate": "",
        tmp_path
        / "scontrol": "#!/bin/sh\ntest -s $RAY_AUTH_TOKEN_PATH && echo >$WHETSTONE_HOME/seen\nexit 3\n",
        tmp_path / "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "WHETSTONE_HOME": str(tmp_path), **job}
    done = subprocess.run(["bash", ROOT / "deploy/slurm/train.sbatch"], env=environment)
    assert done.returncode == 3
    assert (tmp_path / "seen").exists()
    assert not list(tmp_path.glob(".ray-token-*"))
