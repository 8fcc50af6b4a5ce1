"""`whetstone submit`: what it refuses, and on a real cluster a run that is submitted, stopped and resumed.

On the same cluster: the reward servers of the KubeRay manifest.
"""

import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from contracts.errors import InputError
from contracts.network.access import protect_rays_token
from services.cluster.job_actions import entrypoint
from services.cluster.open_cluster import MAKE_A_TOKEN, warning_if_open
from services.commands.submit import run
from services.runs.folder import RunFolder
from services.runs.tracking.prometheus import names
from tests.free_ports import free_port
from tests.models import make_tiny_model
from tests.runs import QUICK, ROOT
from tests.services.ray_head import RAY, RayHead

TOKEN = "a-token-of-the-tests-own"
LEAKY = "tests.test_ways_out_of_actors:OnceLeaky"  # a reward that says its api_key once
PATIENCE_S = 600.0
START = "reward_servers.start_timeout_s=600"  # on a machine that is busy with others


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rolout.max_tokens=5", "model.path=x"], "did you mean 'rollout'"),
        (["model.path=no-such-folder/at-all"], "no-such-folder"),
        (
            ["model.path=x", "tracking.uri=https://ada:pw@host"],
            r"https://\*\*\*@host: everybody on the cluster",
        ),
        (["model.path=x", "--working-dir=."], "output_dir=runs: the copy of --working-dir is deleted"),
        (["model.path=x", "--working-dir=nowhere"], "--working-dir nowhere: there is no such folder"),
        (["stop"], "stop: expected a job's ID"),
        (["logs", "a", "b"], "logs: got a b, expected a single job's ID"),
        (["status", "--address=example"], "expected the job server's address"),
    ],
)
def test_what_would_fail_there_is_refused_here(argv: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(argv)


def test_a_cluster_that_is_not_there_is_said() -> None:
    port = free_port()
    message = (
        rf"no Ray cluster answers at http://127\.0\.0\.1:{port} .*{re.escape(MAKE_A_TOKEN)}.*ray start --head"
    )
    with pytest.raises(InputError, match=message):
        run(["status", f"--address=http://127.0.0.1:{port}"])


def test_the_jobs_command_survives_its_shell() -> None:
    overrides = ["reward={name: rouge, label: 'r 1'}", "run_name=$HOME"]
    line = entrypoint(overrides, None)
    assert shlex.split(line)[-3:] == ["train", *overrides]
    assert line.startswith("cd ") and " && exec " in line


@pytest.mark.parametrize(("status", "is_told"), [(200, True), (401, False), (403, False), (302, False)])
def test_a_cluster_that_asks_for_no_token_is_told(status: int, is_told: bool) -> None:
    requests: list[dict[str, str]] = []

    class JobServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(dict(self.headers))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), JobServer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        warning = warning_if_open(address)
    assert (warning is not None) == is_told and "Authorization" not in requests[0]
    assert not is_told or warning.startswith(f"{address} asks for no token: whoever reaches it can run any")  # type: ignore[union-attr]
    assert warning_if_open(address) is warning_if_open("auto") is None  # nobody is there, or nobody knows


def test_rays_token_is_left_to_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    protect_rays_token()
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(TOKEN)
    (tmp_path / ".ray" / "auth_token").chmod(0o644)
    protect_rays_token()
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_users_cluster_has_no_token_and_every_command_warns() -> None:
    """As `ray start --head` makes it in a home folder where nobody has made a token."""
    head = RayHead.start({}, token=False)
    try:
        assert not (head.folder / ".ray" / "auth_token").exists()
        assert httpx.get(f"{head.job_server}/api/jobs/", timeout=120).status_code == 200
        for words in (["status"], ["logs", "nobody"]):
            _, text = answer(head, *words)
            assert f"warning: {head.job_server} asks for no token" in text, text
            assert "ray get-auth-token --generate" in text
        code, text = answer(head, "stop", "all")
        assert code == 0 and f"no run of `whetstone submit` goes on at {head.job_server}" in text
        made = subprocess.run(
            [*RAY, "get-auth-token", "--generate"], env=head.environment, capture_output=True, timeout=120
        )
        assert made.returncode == 0 and len(made.stdout.strip()) >= 32  # Ray has the command that we name
    finally:
        head.stop()


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    started = RayHead.start({"WHETSTONE_TOKEN": TOKEN})
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def fresh_head() -> Iterator[RayHead]:
    """On a cluster that has had a run, Serve goes on listening where it listened then."""
    started = RayHead.start({"WHETSTONE_TOKEN": TOKEN})
    try:
        yield started
    finally:
        started.stop()


def submit(head: RayHead, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "services.cli", "submit", *words, "--address", head.job_server]
    return subprocess.Popen(
        command, env=head.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def answer(head: RayHead, *words: str) -> tuple[int, str]:
    """(exit code, output), without first lines that say on a slow machine that the command loads."""
    process = submit(head, *words)
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, re.sub(r"\A(loading Ray.*\n)+", "", output)


def wait_for(what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + patience_s
    while not (outcome := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s for {what}"
        time.sleep(0.2)
    return outcome


def ended(process: subprocess.Popen[str]) -> bool:
    """Never: what ends too early fails the test with what it said."""
    assert process.poll() is None, process.communicate()[0]
    return False


def exported(head: RayHead, run_name: str) -> dict[str, float]:
    """Text of Ray's endpoint about a run, as Prometheus would read it."""
    try:
        lines = httpx.get(head.metrics, timeout=30).text.splitlines()
    except httpx.TransportError:
        return {}
    ours = [line for line in lines if f'run="{run_name}"' in line]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in ours}


def served(head: RayHead) -> dict[str, Any]:
    """Serve's applications, by Ray's own interface, which KubeRay speaks, too."""
    status: dict[str, Any] = httpx.get(
        f"{head.job_server}/api/serve/applications/", headers=head.authorized, timeout=120
    ).json()
    return status["applications"]


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_is_submitted_followed_stopped_and_resumed(head: RayHead, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    leaky = f"{{name: '{LEAKY}', weight: 0, api_key: ${{oc.env:WHETSTONE_TOKEN,none}}}}"
    overrides = (
        *(f"output_dir={tmp_path}/runs", "run_name=far", f"model.path={model}", "iterations=500"),
        f"reward=[increasing_numbers,{leaky}]",
        *("rollout.engine=transformers", "metrics=[]", "evaluate_every=0", "save_every=0", *QUICK, START),
    )
    folder = RunFolder(tmp_path / "runs/far")

    following = submit(head, *overrides)
    wait_for("three iterations", lambda: ended(following) or len(folder.rollout_info()) >= 3)
    wait_for("all metrics", lambda: names() <= exported(head, "far").keys())
    metrics = exported(head, "far")
    assert 0 < metrics["ray_whetstone_iteration"] <= len(folder.rollout_info())
    assert metrics["ray_whetstone_iterations_planned"] == 500
    assert 0 <= time.time() - metrics["ray_whetstone_last_progress_timestamp_seconds"] < 60

    code, listing = answer(head, "status")
    assert code == 0
    assert "asks for no token" not in listing
    (job,) = [line.split()[0] for line in listing.splitlines()]
    assert job.startswith("far-") and "RUNNING" in listing and str(folder.path) in listing
    code, refused = answer(head, "resume", job)
    assert code == 2 and f"{job} is RUNNING" in refused
    assert not folder.checkpoints()

    code, text = answer(head, "stop", job)
    assert code == 0 and "STOPPED" in text
    log, _ = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 130, log
    assert "iteration 1/500" in log and "stopping: saving the last whole iteration" in log
    (saved,) = folder.checkpoints()
    assert saved >= 3 and folder.report.exists()
    kept = answer(head, "logs", job)[1]
    assert kept in log
    for text in (log, kept, folder.log.read_text()):
        assert TOKEN not in text and "reward OnceLeaky: ConnectionError: once: refused ***" in text
    wait_for("the run's servers to end", lambda: not served(head))

    code, log = answer(head, "resume", job, f"iterations={saved + 2}")
    assert code == 0, log
    assert f"resumed from {folder.checkpoint(saved)}" in log
    assert [row["iteration"] for row in folder.rollout_info()] == list(range(1, saved + 3))
    assert (folder.model / "config.json").exists()
    assert [line.split()[1] for line in answer(head, "status")[1].splitlines()] == ["SUCCEEDED", "STOPPED"]
    for place in (folder.path, head.folder):  # what the run has written, and Ray of it
        files = [path for path in place.rglob("*") if path.is_file()]
        assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_manifests_reward_servers_answer_who_knows_the_token(fresh_head: RayHead) -> None:
    head = fresh_head
    manifest = yaml.safe_load((ROOT / "deploy/kuberay/rayservice.yaml").read_text())
    configuration = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    port = free_port()
    configuration["http_options"] = {"host": "127.0.0.1", "port": port}
    configuration["proxy_location"] = "HeadOnly"
    for application in configuration["applications"]:  # two cores are enough for all
        application.get("args", {}).get("server", {}).pop("num_cpus", None)

    put = httpx.put(
        f"{head.job_server}/api/serve/applications/", json=configuration, headers=head.authorized, timeout=120
    )
    assert put.status_code == 200, put.text
    wanted = {application["name"] for application in configuration["applications"]}

    def running() -> bool:
        there = served(head)
        assert "DEPLOY_FAILED" not in json.dumps(there), json.dumps(there, indent=1)
        return {name for name, app in there.items() if app["status"] == "RUNNING"} == wanted

    wait_for(f"{wanted} to run", running)
    address = f"http://127.0.0.1:{port}"
    request = {"samples": [{"text": "the cat", "references": ["the cat"]}]}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        for path in ("/", "/openapi.json"):
            assert httpx.get(address + path, headers=headers, timeout=120).status_code == 401
        assert (
            httpx.post(f"{address}/score/rouge", json=request, headers=headers, timeout=120).status_code
            == 401
        )
    known = {"Authorization": f"Bearer {TOKEN}"}
    scored = httpx.post(f"{address}/score/rouge", json=request, headers=known, timeout=120)
    assert (scored.status_code, scored.json()) == (200, {"scores": [{"score": 1.0, "error": None}]})
    measured = httpx.post(f"{address}/metric/rouge", json=request, headers=known, timeout=120)
    assert measured.status_code == 200 and measured.json()["metrics"]["lexical/rouge_rouge1"]["corpus"] == 1.0
