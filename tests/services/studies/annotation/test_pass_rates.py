"""`whetstone annotate --pass-rate`: rates, what is kept, a kill in the middle, what is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from services.commands.annotate import run
from services.commands.generate import run as generate
from services.data.tasks.prompts import Prompts
from tests.models import make_tiny_model
from tests.services.annotated_rows import DIES_AFTER

HERE = "tests.services.annotated_rows"
ROOT = Path(__file__).parents[4]
NUM, SAMPLES = 6, 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), window=32)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six prompts with columns of their own, and one prompt for each other split."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"prompt": f"{n} 1", "source": {"page": n}, "note": "ü"} for n in range(NUM)]
    for split, some in (("train", rows), ("validation", rows[:1]), ("test", rows[1:2])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return folder


def command(folder: Path, data: Path, model: Path, *more: str, out: str = "out") -> list[str]:
    """Four answers of three numbers; one passes where the last is at least 50, so that half of them do."""
    return [
        "--pass-rate",
        f"task={{name: prompts, data_files: '{data}'}}",
        f"model={model}",
        f"reward={{name: '{HERE}:Ledger', file: '{folder / out}.ledger'}}",
        f"output={folder / out}",
        f"samples={SAMPLES}",
        "pass_at=0.5",
        "prompts_per_part=2",
        "rollout.max_tokens=3",
        "rollout.engine=transformers",
        *more,
    ]


def rows_of(folder: Path, out: str = "out") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / out / "train.jsonl").read_text().splitlines()]


def answers(folder: Path, out: str = "out") -> list[list[str]]:
    """The texts of each prompt, in order."""
    files = sorted((folder / out / "rewards").glob("part-*.parquet"))
    return [texts for file in files for texts in pq.read_table(file)["texts"].to_pylist()]


def passing(texts: list[str]) -> int:
    last = [(text.split() or [""])[-1] for text in texts]
    return sum(word.isdigit() and int(word) >= 50 for word in last)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


def test_each_prompt_has_the_share_of_its_answers_that_pass_beside_its_columns(
    tmp_path: Path, data: Path, model: Path
) -> None:
    assert run(command(tmp_path, data, model, "lowest=0", "highest=1")) == 0
    texts = answers(tmp_path)
    assert [len(some) for some in texts] == [SAMPLES] * NUM
    assert rows_of(tmp_path) == [
        {"prompt": f"{n} 1", "source": {"page": n}, "note": "ü", "pass_rate": passing(texts[n]) / SAMPLES}
        for n in range(NUM)
    ]
    assert len({row["pass_rate"] for row in rows_of(tmp_path)}) > 2  # else this would prove little


def test_the_answers_are_those_of_generate(
    tmp_path: Path, data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(command(tmp_path, data, model, "lowest=0", "highest=1", f"prompts_per_part={NUM}", "seed=3"))
    capsys.readouterr()
    generate(
        f"{model} --prompts {data / 'train.jsonl'} --n {SAMPLES} --max-tokens 3 --seed 3 --temperature 1 "
        "--json --engine transformers".split()
    )
    texts = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()]
    assert [text for some in answers(tmp_path) for text in some] == texts


def test_a_task_reads_what_is_neither_never_nor_always_solved(
    tmp_path: Path, data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(command(tmp_path, data, model, "pass_at=0.75"))
    counts = [sum(int(text.split()[-1]) >= 75 for text in some) for some in answers(tmp_path)]
    kept = [n for n, count in enumerate(counts) if 0 < count < SAMPLES]
    assert 0 < len(kept) < NUM
    task = Prompts(data_files=str(tmp_path / "out"), meta_columns=("pass_rate", "source.page"))
    assert [(prompt.text, dict(prompt.meta)) for prompt in task.prompts("train")] == [
        (f"{n} 1", {"pass_rate": counts[n] / SAMPLES, "source.page": n}) for n in kept
    ]
    held_out = Prompts(data_files=str(tmp_path / "out"))
    assert [[prompt.text for prompt in held_out.prompts(split)] for split in ("validation", "test")] == [
        ["0 1"], ["1 1"],
    ]  # fmt: skip
    never = sum(count == 0 for count in counts)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"kept {len(kept)} of {NUM} prompts" in printed and f"{never} never solved" in printed


def test_a_killed_filter_goes_on_to_the_same_bytes(tmp_path: Path, data: Path, model: Path) -> None:
    """kill -9 while the second part of three is scored."""
    code = f"from services.commands.annotate import run; run({command(tmp_path, data, model)!r})"
    limit = str(2 + 2 * SAMPLES)  # the trial's two texts, and the first part
    killed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, DIES_AFTER: limit}, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert [file.name for file in (tmp_path / "out" / "rewards").iterdir()] == ["part-000000000.parquet"]
    assert not (tmp_path / "out" / "train.jsonl").exists()
    (tmp_path / "out.ledger").unlink()
    run(command(tmp_path, data, model))
    assert len((tmp_path / "out.ledger").read_text().splitlines()) == 2 + 4 * SAMPLES  # two parts were left
    whole = tmp_path / "whole"
    whole.mkdir()
    ledger = f"reward={{name: '{HERE}:Ledger', file: '{tmp_path / 'out.ledger'}'}}"
    run(command(whole, data, model, ledger))
    assert files_of(tmp_path / "out") == files_of(whole / "out")


def test_other_limits_ask_neither_model_nor_reward_again(tmp_path: Path, data: Path, model: Path) -> None:
    run(command(tmp_path, data, model, "lowest=0", "highest=1"))
    ledger, rates = (tmp_path / "out.ledger").read_text(), [row["pass_rate"] for row in rows_of(tmp_path)]
    run(command(tmp_path, data, model, "lowest=0.5", "highest=0.75"))
    assert [row["pass_rate"] for row in rows_of(tmp_path)] == [r for r in rates if 0.5 <= r <= 0.75]
    assert (tmp_path / "out.ledger").read_text() == ledger


def test_answers_without_a_score_do_not_count(
    tmp_path: Path, data: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(command(tmp_path, data, model, "lowest=0", "highest=1"))
    unlucky = answers(tmp_path)[0][0]
    ledger = f"{{name: '{HERE}:Ledger', file: '{tmp_path / 'ledger'}', never: '{unlucky}'}}"
    run(command(tmp_path, data, model, f"reward={ledger}", "lowest=0", "highest=1", out="again"))
    scored = [text for text in answers(tmp_path, "again")[0] if text != unlucky]
    assert rows_of(tmp_path, "again")[0]["pass_rate"] == passing(scored) / len(scored)


def test_a_model_with_an_encoder_answers_and_rows_are_made_of_other_tasks_prompts(tmp_path: Path) -> None:
    """A reward of whole groups sees the answers to each prompt together."""
    t5 = make_tiny_model(tmp_path / "t5", architecture="t5")
    groups = f"reward={{name: '{HERE}:GroupLedger', file: '{tmp_path / 'groups'}'}}"
    task = f"task={{name: '{HERE}:Answered', num: 3}}"
    run(command(tmp_path, tmp_path, t5, task, groups, "pass_at=1", "lowest=0", "highest=1"))
    (_, *calls) = (tmp_path / "groups").read_text().splitlines()
    assert calls == [f"train/{n}: {' | '.join(some)}" for n, some in enumerate(answers(tmp_path))]
    read = Prompts(data_files=str(tmp_path / "out")).prompts("train")
    assert [(prompt.text, prompt.references) for prompt in read] == [(f"{n} 1", ("9 9",)) for n in range(3)]


def test_what_is_refused(tmp_path: Path, data: Path, model: Path) -> None:
    with pytest.raises(InputError, match=r"all 6 prompts were dropped: 6 never solved.*with other limits"):
        run(command(tmp_path, data, model, "pass_at=7"))
    assert not (tmp_path / "out" / "train.jsonl").exists()
    with pytest.raises(InputError, match=r"(?s)with other settings.*rows.samples: 4 in the folder, 5 now"):
        run(command(tmp_path, data, model, "samples=5"))
    with pytest.raises(InputError, match=r"expected lowest ≤ highest, got 0.5 and 0.25"):
        run(command(tmp_path, data, model, "lowest=0.5", "highest=0.25"))
    with pytest.raises(InputError, match=r"rollout.max_prompt_tokens=1 cuts them"):
        run(command(tmp_path, data, model, "rollout.max_tokens=31", out="long"))
    with pytest.raises(InputError, match="experiment"):
        run(command(tmp_path, data, model, "experiment=dates"))
    with pytest.raises(InputError, match=r"output=.* holds 'test.jsonl' but no manifest.json"):
        run(command(tmp_path, data, model, f"output={data}"))


def test_overwrite_answers_anew(tmp_path: Path, data: Path, model: Path) -> None:
    run(command(tmp_path, data, model, "lowest=0"))
    run(command(tmp_path, data, model, "lowest=0", "samples=5", "overwrite=true"))
    assert {len(some) for some in answers(tmp_path)} == {5}
