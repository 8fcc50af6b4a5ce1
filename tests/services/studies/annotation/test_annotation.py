"""`whetstone annotate`: what is scored, kept, gone on with, refused; its stages and the file they end in."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from contracts.errors import InputError, RunError
from contracts.rollout import Prompt, Sampling
from contracts.scores import Sample, Score
from reward_servers.settings import parts
from reward_servers.user_rewards.trial import TEXTS
from rollout_workers.settings import RolloutSettings
from services.commands.annotate import run
from services.config.value_stage import ValueStage
from services.data.annotated.parts import Parts, claimed, cuts_between, settle_manifest, write_table
from services.data.annotated.responses import ResponseData, read_responses
from services.data.annotated.rows import check_vocabulary, read_annotated
from services.data.tasks.base import SPLITS
from services.data.tasks.responses import ResponseRow
from services.data.tokens.prompt_limit import PromptLimit
from services.data.tokens.response_tokens import ResponseTokens
from services.studies.annotation.settings import settings_from
from services.training.sources.leasing import EVALUATION
from services.training.sources.offline import OfflineSource
from services.training.sources.prompt_values import leases_for
from services.training.sources.row_rewards import as_table
from tests.models import Architecture, make_tiny_model
from tests.services.annotated_rows import DIES_AFTER

HERE = "tests.services.annotated_rows"
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("reference"), sharpness=5.0)


def command(folder: Path, *more: str, num: int = 10, ledger: str = "ledger") -> list[str]:
    """20 rows in parts of 4, unless said otherwise."""
    first = f"{{name: '{HERE}:Ledger', file: '{folder / ledger}'}}"
    return [
        f"task={{name: '{HERE}:Pairs', num: {num}}}",
        f"reward=[{first},{{name: '{HERE}:Length', weight: 0.5}}]",
        f"output={folder / 'out'}",
        "executor=here",
        "rows_per_part=4",
        "rollout.max_tokens=4",
        "rollout.engine=transformers",
        "learner.device=cpu",
        *more,
    ]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "out" / "annotated.parquet").to_pylist()


def scored(folder: Path, ledger: str = "ledger") -> Counter[str]:
    """How often each row was scored; the two texts of the trial are no rows."""
    lines = (folder / ledger).read_text().splitlines()
    return Counter(line for line in lines if not line.endswith(TEXTS))


# Groups


@pytest.mark.parametrize("size", [1, 3, 4, 64])
def test_a_reward_of_groups_sees_each_group_whole_and_once_however_large_a_part_is(
    tmp_path: Path, size: int
) -> None:
    """The two responses of a prompt are never in two parts, even if a part has an odd number of rows."""
    one = [
        f"task={{name: '{HERE}:Pairs', num: 11}}",
        f"reward={{name: '{HERE}:GroupLedger', file: '{tmp_path / 'ledger'}'}}",
        f"output={tmp_path / 'out'}",
        "executor=here",
        f"rows_per_part={size}",
    ]
    assert run(one) == 0
    _trial, *calls = (tmp_path / "ledger").read_text().splitlines()
    assert sorted(calls) == sorted(f"data/{n}: {n} 77 | {n} {n}" for n in range(11))
    rows = rows_of(tmp_path)
    # "7 77" is longer than "7 7"; "10 77" and "10 10" are equally long, and keep their order
    assert [row["reward.GroupLedger"] for row in rows] == [1.0, 0.0] * 10 + [0.0, 1.0]
    assert run(one) == 0  # nothing is left to do
    assert len((tmp_path / "ledger").read_text().splitlines()) == 12


def test_rows_of_one_prompt_must_follow_each_other_for_such_a_reward() -> None:
    assert cuts_between([4, 4, 2, 2, 2, 7], size=1) == (0, 2, 5)
    assert cuts_between([], size=3) == ()
    with pytest.raises(InputError, match="rows 0 and 3 belong to one prompt, with others in between"):
        cuts_between([4, 2, 2, 4], size=64)


# Rewards


def test_every_response_has_a_column_for_each_reward_in_the_order_of_the_rows(tmp_path: Path) -> None:
    assert run(command(tmp_path)) == 0
    rows = rows_of(tmp_path)
    assert [row["row"] for row in rows] == list(range(20))
    assert [row["group"] for row in rows] == [row // 2 for row in range(20)]
    # the responses to prompt 7 are "7 77" and "7 7"
    assert [rows[14][key] for key in ("prompt", "response", "good", "reward.Ledger", "reward.Length")] == [
        "7 1", "7 77", True, 0.77, 2.0,
    ]  # fmt: skip
    assert [rows[15][key] for key in ("response", "good", "reward.Ledger", "error")] == [
        "7 7", False, 0.07, None,
    ]  # fmt: skip


def test_graders_see_which_rows_share_a_prompt_and_the_references_responses_are_others(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.services.annotated_rows import Ledger

    seen, score = Counter[str](), Ledger.score

    def watch(self: Ledger, samples: Sequence[Sample]) -> list[float]:
        seen.update(sample.group for sample in samples)
        return score(self, samples)

    monkeypatch.setattr(Ledger, "score", watch)
    run(command(tmp_path, f"reference={model}", "value.max_value=4", "value.num_epochs=1", "value.head=mean"))
    of_data = {f"data/{number}": 2 for number in range(10)}
    of_reference = {f"data/{EVALUATION + number}": 1 for number in range(10)}
    assert {name: count for name, count in seen.items() if name.startswith("data/")} == of_data | of_reference


def test_nothing_is_scored_again_when_all_is_there(tmp_path: Path) -> None:
    run(command(tmp_path))
    first = (tmp_path / "out" / "annotated.parquet").read_bytes()
    run(command(tmp_path))
    assert set(scored(tmp_path).values()) == {1}
    assert (tmp_path / "out" / "annotated.parquet").read_bytes() == first


def test_a_killed_annotation_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 in the middle of a part: what was finished is not scored again, and the file is the same."""
    code = f"from services.commands.annotate import run; run({command(tmp_path)!r})"
    killed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, DIES_AFTER: "11"}, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    finished = {path.name for path in (tmp_path / "out" / "rewards").glob("part-*.parquet")}
    assert finished == {"part-000000000.parquet", "part-000000004.parquet"}
    before = scored(tmp_path)
    assert sum(before.values()) == 12 and not (tmp_path / "out" / "annotated.parquet").exists()
    run(command(tmp_path))
    counts = scored(tmp_path)
    assert len(counts) == 20
    # the four rows that were in flight, alone, were scored twice
    assert Counter(counts.values()) == {1: 16, 2: 4}
    assert {row for row, times in counts.items() if times == 2} == set(list(before)[8:12])
    whole = tmp_path / "uninterrupted"
    whole.mkdir()
    run(command(whole))
    resumed = (tmp_path / "out" / "annotated.parquet").read_bytes()
    assert resumed == (whole / "out" / "annotated.parquet").read_bytes()
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_row_that_fails_is_counted_told_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = f"{{name: '{HERE}:Ledger', file: '{tmp_path / 'ledger'}', never: '3 3'}}"
    run([*command(tmp_path), f"reward=[{ledger}]"])
    output = " ".join(capsys.readouterr().out.split())
    assert "1 of 20 responses could not be scored" in output and "never 3 3" in output
    row = rows_of(tmp_path)[7]
    assert row["reward.Ledger"] is None and "never 3 3" in row["error"]
    rows = read_annotated(tmp_path / "out")
    assert len(rows) == 19 and rows.left_out == {"not scored": 1}


def test_failed_rows_are_scored_again_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.services.annotated_rows import Ledger

    ledger = f"reward=[{{name: '{HERE}:Ledger', file: '{tmp_path / 'ledger'}', never: '3 3'}}]"
    run([*command(tmp_path), ledger])
    monkeypatch.setattr(Ledger, "score", lambda self, samples: [0.5] * len(samples))
    run([*command(tmp_path), ledger, "retry_failed=true"])
    # rows 4 to 7 are the part of the failed row; the others are as they were
    assert [row["reward.Ledger"] for row in rows_of(tmp_path)][3:9] == [0.01, 0.5, 0.5, 0.5, 0.5, 0.77]


def test_parts_that_are_scored_again_stay_until_their_new_scores_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.services.annotated_rows import Ledger

    ledger = f"reward=[{{name: '{HERE}:Ledger', file: '{tmp_path / 'ledger'}', never: '3 3'}}]"
    arguments = [*command(tmp_path), ledger, "rows_per_part=16"]
    run(arguments)
    files = sorted((tmp_path / "out" / "rewards").iterdir())
    before = [file.read_bytes() for file in files]

    def fail(self: Ledger, samples: Sequence[Sample]) -> list[float]:
        if all(sample.text in TEXTS for sample in samples):
            return [0.5] * len(samples)
        raise ValueError("no quota is left")

    monkeypatch.setattr(Ledger, "score", fail)
    with pytest.raises(RunError, match="scored none of the 16 rows of the part from row 0 on"):
        run([*arguments, "retry_failed=true"])
    assert [file.read_bytes() for file in files] == before


def test_a_reward_that_scores_nothing_is_refused_before_the_first_part(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reward Ledger: none of 2 texts could be scored: IsADirectoryError"):
        run([*command(tmp_path), f"reward=[{{name: '{HERE}:Ledger', file: '/'}}]", "rows_per_part=16"])
    assert not (tmp_path / "out" / "rewards").exists()


def test_what_is_no_score_is_refused_before_the_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.services.annotated_rows import Ledger

    monkeypatch.setattr(Ledger, "score", lambda self, samples: {1.0: "a", 0.5: "b"})
    with pytest.raises(InputError, match=r"reward Ledger: score\(\) returned a dict"):
        run(command(tmp_path))
    assert not (tmp_path / "out" / "rewards").exists()


# What is there was made as it is asked for now


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rows_per_part=5", "rows.rows_per_part: 4 in the folder, 5 now"),
        (f"task={{name: '{HERE}:Pairs', num: 9}}", "rows.num_rows: 20 in the folder, 18 now"),
        (f"reward=[{{name: '{HERE}:Length'}}]", "rewards.parts.Ledger.name"),
    ],
)
def test_another_annotation_in_the_folder_is_refused(tmp_path: Path, change: str, message: str) -> None:
    run(command(tmp_path))
    before = (tmp_path / "out" / "manifest.json").read_text()
    with pytest.raises(InputError, match=message):
        run([*command(tmp_path), change])
    assert (tmp_path / "out" / "manifest.json").read_text() == before


def test_overwrite_makes_anew_what_differs_and_keeps_the_rest(tmp_path: Path) -> None:
    stages = {"rows": {"n": 1}, "rewards": {"a": 1}, "reference": {"m": 1}, "value": {"v": 1}}
    settle_manifest(tmp_path, stages, overwrite=False)
    for name in ("rewards", "reference", "value"):
        (tmp_path / name).mkdir()
    (tmp_path / "value" / "values.parquet").write_text("")
    settle_manifest(tmp_path, {**stages, "reference": {"m": 2}}, overwrite=True)
    assert (tmp_path / "rewards").exists() and not (tmp_path / "reference").exists()
    assert not (tmp_path / "value" / "values.parquet").exists()  # it was the other reference's


def test_weights_change_nothing_that_is_kept(tmp_path: Path) -> None:
    """0.01 i of the last number and half a point a word: prompt 7's are .77 + 1 and .07 + 1."""
    run(command(tmp_path))
    rows = read_annotated(tmp_path / "out")
    assert rows.rewards_M is not None and rows.rewards_M[14:16] == pytest.approx([1.77, 1.07])
    light = command(tmp_path)
    light[1] = light[1].replace("weight: 0.5", "weight: 0.25")
    run(light)
    assert set(scored(tmp_path).values()) == {1}
    again = read_annotated(tmp_path / "out")
    assert again.rewards_M is not None and again.rewards_M[14:16] == pytest.approx([1.27, 0.57])


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    equal = write(tmp_path / "a.jsonl", {"prompt": "a", "chosen": "x", "rejected": "x"})
    with pytest.raises(InputError, match="no usable response"):
        run([f"data.files={equal}", "reward=length", f"output={tmp_path / 'out'}", "executor=here"])
    assert not (tmp_path / "out").exists()


def test_half_a_character_is_kept_as_an_escape() -> None:
    row = ResponseRow(Prompt("", "a"), "b\ud800", 0, True, 0)
    table = as_table([0], [row], parts("length"), [Score(1.0, {"length": 1.0})])
    assert table["response"].to_pylist() == ["b\\ud800"]


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("")
    with pytest.raises(InputError, match=r"holds 'thesis.txt' but no manifest.json"):
        run(command(tmp_path))


def test_a_training_runs_folder_is_left_alone_although_it_has_a_lock(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in (".lock", "config.yaml", "metrics.jsonl"):
        (tmp_path / "out" / name).write_text("")
    with pytest.raises(InputError, match=r"holds 'config.yaml' but no manifest.json"):
        run(command(tmp_path))
    (tmp_path / "killed").mkdir()  # before anything but the lock was there
    for name in (".lock", ".manifest.json.7.tmp"):
        (tmp_path / "killed" / name).write_text("")
    with claimed(tmp_path / "killed"):
        assert [path.name for path in (tmp_path / "killed").iterdir()] == [".lock"]


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    run(command(tmp_path))
    (tmp_path / "out" / "rewards" / "part-000000008.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"part-000000008.parquet can't be read"):
        run(command(tmp_path))


def test_the_bytes_depend_on_the_rows_alone(tmp_path: Path) -> None:
    import pyarrow as pa

    rows = pa.table({"row": range(3000), "text": [str(row) for row in range(3000)]})
    write_table(tmp_path / "one", [rows])
    write_table(tmp_path / "many", [rows.slice(start, 64) for start in range(0, 3000, 64)])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


def test_a_part_has_the_rows_it_should() -> None:
    parts = Parts(Path("nowhere"), num_rows=10, size=4)
    assert [list(parts.rows(start)) for start in parts.starts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


# The reference


def test_a_responses_logprobs_are_the_models_own(tmp_path: Path, model: Path) -> None:
    run(command(tmp_path, f"reference={model}", "learner.token_budget=30"))
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model).eval()
    for row in rows_of(tmp_path)[::7]:
        prompt, tokens = row["prompt_tokens"], row["tokens"]
        assert tokens[-1] == 1 and len(tokens) == 3  # two numbers and the end
        logits = lm(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[range(len(tokens)), tokens]
        assert row["ref_logprobs"] == pytest.approx(expected.tolist(), abs=1e-5)
        assert not row["cut"]


def test_an_encoder_decoder_reads_the_prompt_and_scores_the_response(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "t5", architecture="t5")
    run(command(tmp_path, f"reference={model}", "value.max_value=4", "value.num_epochs=1"))
    from transformers import AutoModelForSeq2SeqLM

    lm = AutoModelForSeq2SeqLM.from_pretrained(model).eval()
    row = rows_of(tmp_path)[3]
    assert row["prompt_tokens"][-1] == 1  # its tokenizer puts an end after each text
    source, labels = torch.tensor([row["prompt_tokens"]]), torch.tensor([row["tokens"]])
    logprobs = lm(input_ids=source, labels=labels).logits[0].log_softmax(-1)
    assert row["ref_logprobs"] == pytest.approx(logprobs[range(3), row["tokens"]].tolist(), abs=1e-5)
    assert row["value"] is not None


def test_tokens_are_for_models_of_the_same_vocabulary(tmp_path: Path, model: Path) -> None:
    from transformers import AutoTokenizer

    run(command(tmp_path, f"reference={model}"))
    check_vocabulary(tmp_path / "out", AutoTokenizer.from_pretrained(model))
    other = make_tiny_model(tmp_path / "other", vocab=["a", "b"])
    with pytest.raises(InputError, match="whose vocabulary differs"):
        check_vocabulary(tmp_path / "out", AutoTokenizer.from_pretrained(other))


def test_a_reference_is_added_without_scoring_again(tmp_path: Path, model: Path) -> None:
    run(command(tmp_path))
    with pytest.raises(InputError, match="has no log-probabilities of a reference"):
        read_annotated(tmp_path / "out", needs_reference=True)
    run(command(tmp_path, f"reference={model}"))
    assert set(scored(tmp_path).values()) == {1}
    assert read_annotated(tmp_path / "out", needs_reference=True).has_reference
    run(command(tmp_path))  # and stays, when it is not asked for
    assert read_annotated(tmp_path / "out", needs_reference=True).has_reference


def test_stages_that_a_command_does_not_name_stay(tmp_path: Path, model: Path) -> None:
    """Rewards, then a reference, then another one: nothing is scored twice, nor lost."""
    run(command(tmp_path))
    rewards = [row["reward.Ledger"] for row in rows_of(tmp_path)]
    alone = [word for word in command(tmp_path, f"reference={model}") if not word.startswith("reward=")]
    run(alone)
    other = make_tiny_model(tmp_path / "other", seed=1, sharpness=5.0)
    logprobs = [row["ref_logprobs"] for row in rows_of(tmp_path)]
    run([*alone, f"reference={other}", "overwrite=true"])
    assert set(scored(tmp_path).values()) == {1} and len(scored(tmp_path)) == 20
    assert [row["reward.Ledger"] for row in rows_of(tmp_path)] == rewards
    assert [row["ref_logprobs"] for row in rows_of(tmp_path)] != logprobs
    assert read_annotated(tmp_path / "out", needs_reference=True).rewards_M is not None
    assert "Ledger" in json.loads((tmp_path / "out" / "summary.json").read_text())["rewards"]
    (tmp_path / "out" / "rewards" / "part-000000008.parquet").unlink()
    message = r"1 of 5 parts lack the scores of Ledger, Length; expected all: repeat the reward="
    with pytest.raises(InputError, match=message):
        run([*alone, f"reference={other}"])


def test_a_reference_gets_rewards_later(tmp_path: Path, model: Path) -> None:
    arguments = command(tmp_path, f"reference={model}")
    alone = [word for word in arguments if not word.startswith("reward=")]
    run(alone)
    part = tmp_path / "out" / "reference" / "part-000000000.parquet"
    before = part.stat().st_mtime_ns
    run(arguments)
    rows = read_annotated(tmp_path / "out", needs_reference=True)
    assert rows.rewards_M is not None and rows.rewards_M[14:16] == pytest.approx([1.77, 1.07])
    run(alone)  # and they stay
    assert set(scored(tmp_path).values()) == {1} and len(scored(tmp_path)) == 20
    assert part.stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"retry_failed=true scores rows again: expected reward="):
        run([*alone, "retry_failed=true"])


def test_other_weights_are_another_reference(tmp_path: Path, model: Path) -> None:
    run(command(tmp_path, f"reference={model}"))
    other = make_tiny_model(tmp_path / "other", seed=1, sharpness=5.0)
    with pytest.raises(InputError, match=r"reference.sha256: .* in the folder, .* now"):
        run(command(tmp_path, f"reference={other}"))


class Letters:
    """A tokenizer: a letter a token, 0 is the end."""

    eos_token_id, bos_token_id, truncation_side = 0, None, "right"

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        tokens, most = [ord(letter) for letter in text], options.get("max_length")
        kept = tokens[-most:] if most and self.truncation_side == "left" else tokens[:most]
        return {"input_ids": kept}


def test_long_prompts_are_cut_as_asked_and_long_responses_lose_their_end() -> None:
    to_tokens = ResponseTokens(Letters(), PromptLimit(2, "left"), max_tokens=3, room=None)
    tokens = to_tokens(Prompt("", "abc"), "xy")
    assert (tokens.prompt, tokens.response, tokens.cut) == ((98, 99), (120, 121, 0), False)
    kept_beginning = ResponseTokens(Letters(), PromptLimit(2, "right"), max_tokens=3, room=None)
    assert kept_beginning(Prompt("", "abc"), "xy").prompt == (97, 98)
    cut = str(kept_beginning.cut_prompts("train", [Prompt("0", "abc"), Prompt("1", "ab")]))
    assert cut.startswith("train: 1 of 2 (50%) prompts are longer than 2 tokens")
    assert (to_tokens(Prompt("", "a"), "wxyz").response, to_tokens(Prompt("", "a"), "xyz").cut) == (
        (119, 120, 121),
        True,
    )
    assert to_tokens(Prompt("", "a"), "").response == ()


def test_an_annotation_cuts_prompts_where_its_task_or_its_data_say() -> None:
    """And the task of a run that learns from it is told the same."""
    of_task = settings_from(["task=narrative_qa", "task.data_files=x", "reward=length", "output=y"])
    assert of_task.prompt_limit.side == "right"
    left = "task.truncation_side=left"
    of_task = settings_from(["task=narrative_qa", "task.data_files=x", left, "reward=length", "output=y"])
    assert (of_task.prompt_limit.side, of_task.held_out_task["truncation_side"]) == ("left", "left")
    rows = ["data.files=x", "data.truncation_side=right", "reward=length", "output=y"]
    of_rows = settings_from([*rows, "rollout.max_prompt_tokens=9"])
    assert of_rows.prompt_limit == PromptLimit(9, "right")
    assert of_rows.held_out_task["truncation_side"] == "right"


def rows_with(*texts: tuple[str, str]) -> list[ResponseRow]:
    return [ResponseRow(Prompt("", prompt), text, 0, True, 0) for prompt, text in texts]


def test_prompts_without_room_are_refused_with_their_number() -> None:
    to_tokens = ResponseTokens(Letters(), PromptLimit(), max_tokens=3, room=4)
    with pytest.raises(InputError, match="2 of 3 responses have a prompt of more than 4 tokens, the longest"):
        to_tokens.check(rows_with(("abcde", "x"), ("ab", "x"), ("abcdef", "x")))
    assert to_tokens.check(rows_with(("ab", "x"), ("ab", "wxyz"))) == 1


def test_responses_that_are_cut_to_nothing_are_refused_with_their_number() -> None:
    to_tokens = ResponseTokens(Letters(), PromptLimit(), max_tokens=3, room=None)
    with pytest.raises(InputError, match="all 2 responses are cut to nothing"):
        to_tokens.check(rows_with(("a", ""), ("b", "")))


# The value


def test_values_are_learned_kept_and_told(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = ("value.max_value=4", "value.num_epochs=2", "value.head=mean")
    arguments = command(tmp_path, f"reference={model}", *value)
    run(arguments)
    output = " ".join(capsys.readouterr().out.split())
    assert "good responses:" in output and "have a positive advantage" in output
    rows = rows_of(tmp_path)
    assert all(0 < row["value"] < 4 for row in rows)
    assert all(rows[2 * group]["value"] == rows[2 * group + 1]["value"] for group in range(10))
    generations = pq.read_table(tmp_path / "out" / "value" / "generations.parquet").to_pylist()
    assert [row["prompt"] for row in generations] == [f"{50 + i} 1" for i in range(10)]
    errors = json.loads((tmp_path / "out" / "value" / "errors.json").read_text())
    assert len(errors["epochs"]) == 2 and errors["num_held_out"] == 2 and errors["num_prompts"] == 10
    annotated = read_annotated(tmp_path / "out", needs_values=True)
    assert annotated.values_M is not None and annotated.rewards_M is not None
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    kept = np.mean((annotated.rewards_M - annotated.values_M)[annotated.good_M] > 0)
    assert summary["value"]["good"]["share_kept"] == pytest.approx(kept)
    assert (tmp_path / "out" / "advantages.png").stat().st_size > 5000
    # other weights: other values; the generations stay, and nothing is scored again
    before, num_scored = (tmp_path / "out" / "value" / "generations.parquet").stat(), len(scored(tmp_path))
    arguments[1] = arguments[1].replace("weight: 0.5", "weight: 0.25")
    with pytest.raises(InputError, match=r"value.rewards"):
        run(arguments)
    run([*arguments, "overwrite=true"])
    assert (tmp_path / "out" / "value" / "generations.parquet").stat().st_mtime_ns == before.st_mtime_ns
    assert len(scored(tmp_path)) == num_scored and set(scored(tmp_path).values()) == {1}
    assert rows_of(tmp_path)[0]["value"] != rows[0]["value"]


def test_values_can_be_learned_as_lolrls_smaller_tasks_do(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By beam search with a penalty, scored as it is cleaned up, from all prompts in their order."""
    value = ("value.max_value=4", "value.num_epochs=2", "value.num_beams=2", "value.repetition_penalty=2.5")
    options = (f"value.post_processor='{HERE}:first_letter'", "value.held_out_share=0", "value.shuffle=false")
    arguments = command(tmp_path, f"reference={model}", *value, *options)
    run(arguments)
    output = " ".join(capsys.readouterr().out.split())
    assert "on the 10 prompts that it learned from after epoch" in output
    generations = pq.read_table(tmp_path / "out" / "value" / "generations.parquet").to_pylist()
    assert {len(row["response"]) for row in generations} <= {0, 1}
    errors = json.loads((tmp_path / "out" / "value" / "errors.json").read_text())
    assert errors["num_held_out"] == 0 and errors["best"]["held_out"] is None
    with pytest.raises(InputError, match=r"generations\.num_beams"):
        run([argument for argument in arguments if "num_beams" not in argument])


def test_the_reference_writes_as_the_value_stage_says() -> None:
    stage = ValueStage(num_prompts=2, num_beams=3, repetition_penalty=2.5)
    prompts = [Prompt(str(place), "a") for place in range(3)]
    leases = leases_for(prompts, lambda text: (3, 4), RolloutSettings(max_tokens=7), stage)
    assert len(leases) == 2
    expected = Sampling(max_tokens=7, temperature=0.0, num_beams=3, repetition_penalty=2.5)
    assert {lease.sampling for lease in leases} == {expected}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rollout.engine=vllm"], r"value\.num_beams=2: vLLM has no beam search"),
        (["rollout.stop=[x]"], r"value\.num_beams=2: beam search does not support rollout\.stop"),
        (["value.temperature=1"], "num_beams=2 is beam search, which does not sample"),
        (["value.post_processor=shout"], r"post_processor=shout: there is no such post-processor"),
    ],
)
def test_values_that_cannot_be_learned_so_are_refused(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        settings_from(command(tmp_path, "reference=m", "value.num_beams=2", *arguments))


def test_a_grader_that_fails_the_references_responses_does_not_spoil_the_values(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 responses to the prompts "50 1" … "59 1": none is scored, then all but 4, then all."""
    from tests.services.annotated_rows import Ledger

    value = ("value.max_value=4", "value.num_epochs=1", "value.head=mean", "value.temperature=1")
    arguments = command(tmp_path, f"reference={model}", *value, "value.samples_per_prompt=2")
    files, score = tmp_path / "out" / "value", Ledger.score

    def fail(*prompts: str) -> None:
        def failing(self: Ledger, samples: Sequence[Sample]) -> list[float]:
            if any(sample.prompt.startswith(prompts) for sample in samples):
                raise ValueError("no quota is left")
            return score(self, samples)

        monkeypatch.setattr(Ledger, "score", failing)

    fail(*(f"5{i}" for i in range(10)))
    with pytest.raises(RunError, match="scored none of the 20 responses of the reference to validation"):
        run(arguments)
    assert not (files / "generations.parquet").exists()
    fail("50", "51")
    run(arguments)
    output = " ".join(capsys.readouterr().out.split())
    assert "4 responses of the reference to validation prompts could not be scored" in output
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["value"]["num_failed"] == 4
    errors = json.loads((files / "errors.json").read_text())
    before = pq.read_table(files / "generations.parquet").to_pylist()
    assert errors["num_prompts"] == 8 and sum(row["error"] is not None for row in before) == 4
    fail("never")
    run([*arguments, "retry_failed=true"])
    after = pq.read_table(files / "generations.parquet").to_pylist()
    assert [row["response"] for row in after] == [row["response"] for row in before]
    assert after[4:] == before[4:] and all(row["reward.Ledger"] is not None for row in after)
    assert json.loads((files / "errors.json").read_text())["num_prompts"] == 10
    assert "num_failed" not in json.loads((tmp_path / "out" / "summary.json").read_text())["value"]


@pytest.mark.parametrize("architecture", ["gpt2", "t5"])
def test_where_training_starts_at_the_reference_all_ratios_are_one(
    tmp_path: Path, architecture: Architecture
) -> None:
    from learner.algorithms.a_lol import ALoL
    from learner.learner import Learner
    from learner.settings import LearnerSettings, ModelSettings

    model = make_tiny_model(tmp_path / "model", architecture=architecture)
    run(command(tmp_path, f"reference={model}", "value.max_value=3", "value.num_epochs=1"))
    rows = read_annotated(tmp_path / "out", needs_reference=True, needs_values=True)
    whole = ALoL(minibatch_size=None)
    settings = ModelSettings(path=str(model), dropout=False)
    learner = Learner(settings, whole, LearnerSettings(device="cpu"), seed=0, iterations=1)
    source = OfflineSource(rows, ALoL(), seed=0)
    assert source.num_kept == 10  # of the good ones
    metrics = learner.update(source.next(10))
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio/max"] == pytest.approx(1, abs=1e-4)
    assert rows.rewards_M is not None and rows.values_M is not None
    expected = (rows.rewards_M - rows.values_M)[rows.good_M].mean()
    assert metrics["advantage/mean"] == pytest.approx(expected, abs=1e-5)


def test_rewards_out_of_the_values_range_are_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(InputError, match=r"rewards are outside of 0 … max_value=0.001"):
        run(command(tmp_path, f"reference={model}", "value.max_value=0.001"))


# What is read


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def texts(rows: list[ResponseRow]) -> list[tuple[str, int, bool, int]]:
    return [(row.response, row.group, row.is_good, row.order) for row in rows]


def test_rows_are_responses_pairs_or_rankings(tmp_path: Path) -> None:
    single = {"prompt": "a", "response": "x", "good": False}
    file = write(tmp_path / "a.jsonl", single, {"prompt": "b", "response": "y", "good": True}, single)
    responses = read_responses(ResponseData(files=file), None, "train")
    assert texts(responses.rows) == [("x", 0, False, 0), ("y", 1, True, 0), ("x", 0, False, 1)]
    file = write(tmp_path / "b.jsonl", {"prompt": "a", "chosen": "x", "rejected": "y"})
    assert texts(read_responses(ResponseData(files=file), None, "train").rows) == [
        ("x", 0, True, 0), ("y", 0, False, 1),
    ]  # fmt: skip
    file = write(tmp_path / "c.jsonl", {"prompt": "a", "response": ["x", "y", "z"]})
    assert [row.is_good for row in read_responses(ResponseData(files=file), None, "train").rows] == [
        True, False, False,
    ]  # fmt: skip


def test_equal_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    equal = {"prompt": "a", "chosen": "x", "rejected": "x"}
    file = write(tmp_path / "a.jsonl", equal, {"prompt": "b", "chosen": "x", "rejected": "y"})
    responses = read_responses(ResponseData(files=file), None, "train")
    assert len(responses.rows) == 2 and list(responses.skipped.values()) == [1]
    with pytest.raises(InputError, match=r"no usable response; .*chosen and rejected .* are equal': 2"):
        read_responses(ResponseData(files=write(tmp_path / "b.jsonl", equal, equal)), None, "train")


def test_empty_responses_are_refused_with_their_number_or_left_out(tmp_path: Path) -> None:
    rows = (
        {"prompt": "a", "response": " "},
        {"prompt": "", "response": "y"},
        {"prompt": "b", "response": "x"},
    )
    file = write(tmp_path / "a.jsonl", *rows)
    with pytest.raises(InputError, match="1 empty responses and 1 empty prompts, and 1 usable"):
        read_responses(ResponseData(files=file), None, "train")
    assert len(read_responses(ResponseData(files=file, skip_empty=True), None, "train").rows) == 1


def test_a_prompt_that_comes_again_is_in_one_split_alone(tmp_path: Path) -> None:
    """Cut by tens of prompts: of 20, each in three rows, the 9th and 19th to validation."""
    rows = [{"prompt": f"{i // 3} 1", "response": f"{i} 2"} for i in range(60)]
    file = write(tmp_path / "a.jsonl", *rows)
    prompts_of = {
        split: {row.prompt.text for row in read_responses(ResponseData(files=file), None, split).rows}
        for split in SPLITS
    }
    assert prompts_of["validation"] == {"8 1", "18 1"} and prompts_of["test"] == {"9 1", "19 1"}
    assert (
        prompts_of["train"] == {f"{i} 1" for i in range(20)} - prompts_of["validation"] - prompts_of["test"]
    )


def test_a_file_without_responses_is_refused_by_its_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": "a", "response": "x"}, {"prompt": "a", "answer": "x"})
    with pytest.raises(InputError, match=r"data.files: .*line 2: expected prompt and response"):
        read_responses(ResponseData(files=file), None, "train")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["output=o", "reward=length"], "expected data.files"),
        (["output=o", "data.files=x"], "expected reward=… to score with, or reference=MODEL; got neither"),
        (["output=o", "data.files=x", "reward=length", "value=true"], "needs reward=… and reference=MODEL"),
        (["output=o", "data.files=x", "reward=lenght"], "did you mean 'length'"),
        (["output=o", "data.files=x", "reward=length", "value.samples_per_prompt=2"], "temperature above 0"),
        (["data.files=x", "reward=length"], "output: is required"),
    ],
)
def test_what_does_not_fit_together_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings_from(words)
