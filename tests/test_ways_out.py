"""A secret on every way out of Whetstone. docs/security.md lists the ways, with the test of each."""

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal
from rich.table import Table

from contracts.errors import RunError
from contracts.scores import Answer, Sample
from contracts.secrets.secret_values import remember_in, remember_secret
from reward_servers.server import MetricServer, RewardServer
from reward_servers.serving.http import http_app
from reward_servers.settings import Part, Sandbox
from reward_servers.user_rewards.sandbox import SandboxedServer
from services import cli
from services.runs.folder import RunFolder
from services.runs.mirror import Mirror
from services.runs.report.report import write_report
from services.runs.tracking.console import Console, LiveConsole
from services.runs.tracking.run_log import close_log, log_to
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.tracker import Tracker

OPTION, VARIABLE, PASSWORD = "q7-Zebra.crossing+11", "hf_Yellow0submarine", "w'ord/of*9"
SECRETS = (OPTION, VARIABLE, PASSWORD)
CONFIG = {
    "tracking": {"uri": f"https://ada:{PASSWORD.replace('/', '%2F')}@mlflow.example.org/"},
    "reward": [{"name": "mine:Judge", "api_key": OPTION}],
    "algorithm": {"name": "ppo"},
    "task": {"name": "increasing_numbers"},
}
LEAK = f"refused {OPTION} of {VARIABLE!r} at https://host/?key={OPTION}&n=1: {PASSWORD}"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's secrets, as they are when its settings were typed."""
    monkeypatch.setenv("HF_TOKEN", VARIABLE)
    remember_in(CONFIG)


def has_none(output: str | bytes) -> bool:
    """Fails where a secret is in it; whether one was hidden."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output
    for secret in {*SECRETS, *(json.dumps(secret)[1:-1] for secret in SECRETS)}:
        before, hit, after = text.partition(secret)
        assert not hit, f"…{before[-100:]}[HERE: {hit}]{after[:100]}…"
    return "***" in text


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The console


@pytest.mark.parametrize("is_live", [False, True])
def test_the_console_plain_and_live(is_live: bool) -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, force_terminal=is_live, width=60, height=40)
    console = LiveConsole(terminal) if is_live else Console(terminal)
    console.note(f"before it starts: {LEAK}")
    console.start(f"run of {OPTION}", iterations=2)
    console.warn(f"then {LEAK}")
    console.warn(f"at a line's end that is cut {'.' * 20} {OPTION} {OPTION}")
    console.stop()
    assert has_none(out.getvalue())


# What every command prints


def leak(_: Sequence[str]) -> int:
    """All that a command, or a library that it calls, may print."""
    from rich.console import Console as Screen

    print(LEAK)
    print(LEAK, file=sys.stderr)
    print(json.dumps({"text": LEAK}))
    Screen(width=30).print(LEAK, soft_wrap=True)
    Screen(width=24).print(LEAK)
    table = Table("key", "value")
    table.add_row("text", OPTION)
    Screen(width=200).print(table)
    warnings.warn(LEAK, stacklevel=1)
    logging.getLogger("some.library").warning("%s", LEAK)
    thread = threading.Thread(target=_fail, name="a thread")
    thread.start()
    thread.join()
    raise OSError(f"{LEAK} {'.' * 480} {OPTION}")


def _fail() -> None:
    raise ValueError(LEAK)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Standard output and error, and the traceback in a file, of whichever command."""
    monkeypatch.setitem(cli.COMMANDS, command, ("tests.test_ways_out:leak", ""))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest has one of its own
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: sys.stderr.write(f"UserWarning: {message}\n")
        assert cli.main([command, "reward.api_key=typed-0123456789", "--token", "typed-9876543210"]) == 1
    captured = capsys.readouterr()
    assert has_none(captured.out) and has_none(captured.err)
    (log,) = tmp_path.iterdir()
    assert has_none(log.read_text()) and "OSError" in log.read_text()
    for part in ("ValueError", "UserWarning", "some.library" if "some.library" in captured.err else "***"):
        assert part in captured.err


def test_what_was_typed_is_known_before_anything_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["train", "model.path=x", "x.password=Xanthic-0123456789", "seed=Xanthic-0123456789"]
    assert cli.main(typed) == 2
    err = capsys.readouterr().err
    assert "Xanthic" not in err and "seed: got '***'" in err


def test_an_imports_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "theirs.yml"
    source.write_text(
        "tokenizer: {model_name: gpt2}\n"
        f"reward_fn: {{id: learned_reward, args: {{model_name: x, api_key: short, label_ix: '{OPTION}'}}}}\n"
        "datapool: {id: imdb, args: {}}\n"
        "env: {n_envs: 10}\n"
        "alg: {id: ppo, policy: {id: causal_lm_actor_critic_policy, args: {model_name: gpt2}}}\n"
    )
    cli.main(["import-rl4lms", str(source), "--output", str(tmp_path / "ours.yaml")])
    captured = capsys.readouterr()
    assert "short" not in captured.out + captured.err
    has_none(captured.out + captured.err)


# The run's folder, its mirror and its page


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run whose texts, numbers' names and configuration have secrets in them."""
    folder = RunFolder.open(tmp_path / "runs", "run", CONFIG, "auto")
    for number in (1, 2):
        folder.append_rollout_info(number, {"reward/mean": 0.1 * number, f"reward/{OPTION}": 0.2})
        folder.append_training_info(number, {"kl/mean": 0.1, "said": LEAK})
    turn = {"observation": LEAK, "answer": f"<b>{PASSWORD}</b>", "reward": 0.1}
    row = {"split_name": "val", "sample_id": "x/0", "prompt_text": LEAK, "generated_text": LEAK}
    row |= {"ref_text": PASSWORD, "reward": 0.1, "turns": [turn] * 9}  # type: ignore[dict-item]
    for epoch in (0, 2):
        folder.append_evaluation(epoch, "validation", {"reward/mean": 0.1 * epoch, "said": LEAK})
        folder.write_predictions(epoch, "validation", [row])
    write_report(folder)
    return folder


def test_the_runs_folder_its_report_and_its_mirror(folder: RunFolder, tmp_path: Path) -> None:
    """config.yaml, the JSON Lines files, predictions with their transcripts, report.html."""
    Mirror(str(tmp_path / "mirror"), "run").put_files(folder)
    written = files_of(folder.path)
    assert {"config.yaml", "rollout_info.jsonl", "val_split_metrics.jsonl", "report.html"} <= written.keys()
    copied = files_of(tmp_path / "mirror")
    assert len(copied) > 5
    for content in (*written.values(), *copied.values()):
        has_none(content)
    assert sum(b"***" in content for content in written.values()) > 5
    assert folder.predictions(2, "validation")[0]["turns"][0]["reward"] == 0.1
    assert len(folder.training_info()) == 2


def test_the_log(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """log.txt: notes, warnings of our parts and of libraries, Python's warnings, and the fatal error."""
    console = Console(Terminal())
    console.warn(f"before the log is open: {LEAK}")
    log_to(folder.log, console)
    try:
        console.note(LEAK)
        console.warn(LEAK)
        logging.getLogger("services.runs.tracking.mlflow_run").warning("of ours: %s", LEAK)
        logging.getLogger("some_library").info("too little")
        try:
            raise OSError(LEAK)
        except OSError:
            logging.getLogger("some_library").warning("of others: %s", LEAK, exc_info=True)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn(LEAK, stacklevel=1)
        cli._explain("whetstone train", RunError(LEAK))
    finally:
        close_log()
    text = folder.log.read_text()
    assert has_none(text) and "too little" not in text
    levels = [line.split()[2:4] for line in text.splitlines() if line[:2] == "20"]
    assert levels == [
        ["WARNING", "notes:"],
        ["INFO", "notes:"],
        ["WARNING", "notes:"],
        ["WARNING", "services.runs.tracking.mlflow_run:"],
        ["WARNING", "some_library:"],
        ["WARNING", "py.warnings:"],
        ["ERROR", "root:"],
    ]
    captured = capsys.readouterr()
    assert captured.out.count("warning: of ours: ***") + captured.out.count("warning: of ours: refused") == 1
    assert has_none(captured.out)


def test_mlflow(folder: RunFolder, tmp_path: Path) -> None:
    """Parameters, metrics, tags, tables and artifacts, in a real one."""
    tracker = Tracker.start(TrackingSettings(), tmp_path / "tracked", f"run-{OPTION}")
    tracker.log_parameters(
        {"reward.api_key": "short", "said": LEAK, "tracking.uri": CONFIG["tracking"]["uri"]}
    )  # type: ignore[index]
    tracker.log_metrics({f"reward/{OPTION}/mean": 0.5}, 1)
    tracker.log_samples([{"prompt_text": LEAK, "turns": [{"answer": PASSWORD}], "reward": 0.5}], 1, "val")
    tracker.log_artifact(folder.report)
    tracker.log_artifact(folder.config_file)
    assert tracker.run_id
    tracker.finish()
    assert tracker.num_failures == 0
    tracked = files_of(tmp_path / "tracked")
    for content in tracked.values():
        has_none(content)
    assert sum("artifacts" in name for name in tracked) == 3 and b"short" not in tracked["mlflow.db"]


# Rewards: their answers in the cluster, in a sandbox and over HTTP


class Leaky:
    """A reward and a metric that repeat their option and a variable in what they raise."""

    def __init__(self, api_key: str) -> None:
        self._said = LEAK.replace(OPTION, api_key)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        raise PermissionError(self._said)

    def compute(self, samples: Sequence[Sample]) -> dict[str, Any]:
        raise PermissionError(self._said)


LEAKY = Part(name="tests.test_ways_out:Leaky", label="leaky", options={"api_key": OPTION})


def test_a_rewards_and_a_metrics_reason() -> None:
    ((score, reason),) = RewardServer(LEAKY).score([Sample("a")])
    assert score is None and reason is not None and has_none(reason) and "PermissionError" in reason
    with pytest.raises(RunError) as raised:
        MetricServer(LEAKY).compute([Sample("a")])
    assert has_none(str(raised.value))


def test_a_sandboxs_child() -> None:
    """Its answers, and what it printed before it ended."""
    server = SandboxedServer(LEAKY, Sandbox(memory_gib=None, seconds=60))
    try:
        ((score, reason),) = server.score([Sample("a")])
        assert score is None and reason is not None and has_none(reason)
    finally:
        server.close()
    dying = LEAKY.model_copy(update={"name": "tests.test_ways_out:Dying"})
    server = SandboxedServer(dying, Sandbox(memory_gib=None, seconds=60))
    try:
        ((_, reason),) = server.score([Sample("a")])
        assert reason is not None and "exit code 3), saying" in reason and has_none(reason)
    finally:
        server.close()


class Dying(Leaky):
    def score(self, samples: Sequence[Sample]) -> list[float]:
        import os

        print(self._said, file=sys.stderr, flush=True)
        os._exit(3)


def test_serves_answers() -> None:
    from fastapi.testclient import TestClient

    class Remote:
        num_samples = num_cached = 0

        async def score(self, samples: Sequence[Sample]) -> list[Answer]:
            if samples[0].text == "raise":
                raise RunError(LEAK)
            return [(None, LEAK)]

    client = TestClient(
        http_app({"leaky": Remote()}, {}), raise_server_exceptions=False, base_url="http://127.0.0.1"
    )
    for text in ("a", "raise"):
        answered = client.post("/score/leaky", json={"samples": [{"text": text}]})
        assert text == "raise" or has_none(answered.text)
        has_none(answered.text)


def test_metrics_for_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.runs.tracking import prometheus

    tags_set: list[dict[str, str]] = []

    class Gauge:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def set_default_tags(self, tags: dict[str, str]) -> None:
            tags_set.append(tags)

    monkeypatch.setattr(prometheus, "Gauge", Gauge)
    prometheus.RunMetrics(f"run-{OPTION}", 3)
    assert tags_set[0] == {"run": "run-***"}


@pytest.fixture(autouse=True)
def _streams() -> Iterator[None]:
    """A replica guards its process; here that is the tests' own."""
    before = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = before


def test_a_secret_that_the_user_remembers_by_hand() -> None:
    """A secret that a reward of one's own fetches itself, say from a vault."""
    remember_secret("from-a-vault-0123456789")
    out = io.StringIO()
    Console(Terminal(file=out)).note("401 for from-a-vault-0123456789")
    assert out.getvalue() == "401 for ***\n"
