"""`whetstone reproduce`: its plan, what it refuses, what it runs again, and its page, worked by hand."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import stdev

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from services.commands.reproduce import run
from services.config.compose import run_settings
from services.runs.folder import RunFolder
from services.runs.provenance import sha256
from services.runs.report.evaluated import Evaluated
from services.studies.annotation.settings import settings_from
from services.studies.benchmarks.table import Estimate
from services.studies.comparison.differences import welch_limit
from services.studies.reproduction import running
from services.studies.reproduction.checks import check
from services.studies.reproduction.page import EXACT, IS_SMALL, gathered, to_html, to_markdown, write_page
from services.studies.reproduction.places import Places, find_places, replaced
from services.studies.reproduction.plan import Asked, Step, needed, plan
from services.studies.reproduction.published import Published
from services.studies.reproduction.recipe import Data, Measure, Model, Recipe, read_recipe, recipe_names
from services.studies.reproduction.results import _estimate
from services.studies.reproduction.stand_in_rows import write_rows
from services.studies.reproduction.verdict import limit, verdict

NOWHERE = Places({}, {})
SENTIMENT, PERPLEXITY = "semantic/learned_automodel_metric", "fluency_metrics/perplexity"


def finish(step: Step, before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Leave what a finished run leaves."""
    folder = RunFolder.open(
        step.job.folder.parent, step.job.run_name, {"iterations": 2, "seed": step.seed}, "auto"
    )
    for split in ("validation", "test"):
        folder.append_evaluation(0, split, before)
        folder.append_evaluation(2, split, after)
    folder.append_rollout_info(2, {"reward/mean": 0.5, "time/iteration_s": 1.5})
    folder.checkpoint(2).mkdir(parents=True)
    folder.model.mkdir()


@pytest.fixture
def imdb(tmp_path: Path) -> tuple[Recipe, Asked, list[Step]]:
    recipe, options = read_recipe("imdb"), Asked(tmp_path / "out", (0, 1), overrides=("iterations=2",))
    return recipe, options, plan(recipe, options, NOWHERE)


def cells(markdown: str, metric: str, row: str) -> list[str]:
    section = markdown.split(f"## {metric}")[1].split("\n## ")[0]
    (line,) = (text_line for text_line in section.splitlines() if text_line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_run_is_planned_for_each_row_and_seed_and_none_for_zero_shot(imdb: tuple) -> None:
    _, options, steps = imdb
    assert len(steps) == 2 * 7
    assert [step.row for step in steps[:7]] == [
        *("supervised", "ppo", "nlpo", "nlpo corrected"),
        *("supervised+ppo", "supervised+nlpo", "supervised+nlpo corrected"),
    ]
    on_supervised = f'model.path="{options.out}/supervised-seed1/model"'
    assert on_supervised in next(s for s in steps if (s.row, s.seed) == ("supervised+ppo", 1)).job.overrides


def test_chosen_rows_bring_those_that_they_need(tmp_path: Path) -> None:
    def rows(*chosen: str) -> list[str]:
        return [step.row for step in plan(read_recipe("imdb"), Asked(tmp_path, (0,), chosen), NOWHERE)]

    assert rows("supervised+ppo") == ["supervised", "supervised+ppo"]
    assert rows("zero-shot") == ["ppo"]
    with pytest.raises(InputError, match="--rows: popo is not a row of imdb"):
        rows("popo")


def test_data_are_annotated_before_the_rows_and_again_with_the_first_ones_model(tmp_path: Path) -> None:
    steps = plan(read_recipe("faithdial"), Asked(tmp_path, (901,), ("a_lol",)), NOWHERE)
    assert [step.command for step in steps] == ["annotate", "train", "annotate", "train"]
    best = f'reference="{tmp_path}/nll-seed901/best_model"'
    assert best not in steps[0].job.overrides and best in steps[2].job.overrides
    assert f'data.folder="{tmp_path}/annotated-seed901"' in steps[3].job.overrides


@pytest.mark.parametrize("name", ["faithdial", "atomic"])
@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.long)])
def test_annotate_takes_each_annotations_options(name: str, small: bool, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    data = {key: write_rows(tmp_path / key, data_set.like or key) for key, data_set in recipe.data.items()}
    steps = plan(recipe, Asked(tmp_path, (901,), small=small), Places({}, data))
    annotations = [settings_from(list(step.job.overrides)) for step in steps if step.command == "annotate"]
    assert [annotation.value is not None for annotation in annotations] == (
        [False, True] if name == "faithdial" else [True]
    )


def test_what_shapes_the_annotated_data_is_asked_of_the_annotation_too(tmp_path: Path) -> None:
    def annotations(name: str, *overrides: str, places: Places = NOWHERE) -> list[tuple[str, ...]]:
        options = Asked(tmp_path, (901,), ("nll",), overrides)
        steps = plan(read_recipe(name), options, places)
        return [step.job.overrides for step in steps if step.command == "annotate"]

    recipe = "helpful_harmless"
    data = Places({}, {"hh_rlhf": write_rows(tmp_path / "hh", "hh_rlhf")})
    (overrides,) = annotations(
        recipe, "reward.model=judge", "rollout.max_tokens=7", "iterations=2", places=data
    )
    settings = settings_from(list(overrides))
    assert (settings.reward[0].options["model"], settings.rollout.max_tokens) == ("judge", 7)
    assert "iterations=2" not in overrides
    # No model at hand stands in for the one asked for.
    there = Places({"oasst-rm-pythia-1.4b": Path("/m/oasst"), "judge": Path("/m/judge")}, data.data)
    (overrides,) = annotations(recipe, "reward.model=judge", places=there)
    assert settings_from(list(overrides)).reward[0].options["model"] == "/m/judge"
    (overrides,) = annotations(recipe, "model.path=another")
    assert 'reference="another"' in overrides
    # Values are learned only where there is a reference.
    data_sets = read_recipe("faithdial").data
    data = Places(
        {}, {key: write_rows(tmp_path / key, data_set.like or key) for key, data_set in data_sets.items()}
    )
    overrides, again = annotations("faithdial", "data.value.num_epochs=3", places=data)
    value = settings_from(list(again)).value
    assert value is not None and value.num_epochs == 3
    assert settings_from(list(overrides)).value is None
    for refused in ("model.tokenizer=x", "data.folder=x", "experiment=imdb_ppo"):
        with pytest.raises(InputError, match=f"{refused}: .* the annotation can't take"):
            annotations(recipe, refused)


def test_a_models_name_is_replaced_wherever_it_stands() -> None:
    tree = {
        "model": {"path": "gpt2", "tokenizer": "gpt2", "chat": {"template": "auto"}},
        "reward": [{"name": "learned_reward", "model": "judge"}, "rouge"],
        "iterations": 5,
    }
    assert replaced(tree, {"gpt2": Path("/m/gpt2"), "judge": Path("/m/judge")}) == [
        'model.path="/m/gpt2"',
        'model.tokenizer="/m/gpt2"',
        'reward=[{name: "learned_reward", model: "/m/judge"}, "rouge"]',
    ]


def test_what_is_missing_is_said_with_where_to_fetch_it(tmp_path: Path) -> None:
    recipe = read_recipe("imdb")
    (tmp_path / "imdb").mkdir()
    with pytest.raises(InputError) as caught:
        find_places(recipe, tmp_path, tmp_path)
    assert f"hf download lvwerra/gpt2-imdb --local-dir {tmp_path}/lvwerra/gpt2-imdb" in str(caught.value)
    assert "stanfordnlp/imdb" not in str(caught.value)  # that folder is there
    with pytest.raises(InputError, match="comet-distill: not on the hub"):
        find_places(read_recipe("atomic"), None, None)
    assert find_places(recipe, None, None) == NOWHERE
    assert find_places(read_recipe("atomic"), None, None, ()) == NOWHERE


def test_only_what_the_chosen_rows_read_is_asked_for(tmp_path: Path) -> None:
    def names(recipe: str, *rows: str, overrides: tuple[str, ...] = ()) -> set[str]:
        return needed(read_recipe(recipe), Asked(tmp_path, (0, 1), rows, overrides))

    small, large = "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct"
    assert names("textworld", "w2-o3-q4 zero-shot") == {small}
    assert names("textworld", "w4-o6-q8 ppo 7B") == {large}
    assert names("textworld", "w4-o6-q8 ppo 7B", overrides=(f"model.path={tmp_path}",)) == set()
    # The annotation's reference and reward, and its data.
    assert names("atomic", "nll") == {"comet-distill", "comet-critic", "atomic"}
    assert names("atomic", "nll", overrides=("task.data_files=mine",)) == {"comet-distill", "comet-critic"}
    for model in (small, "nothing needs this"):
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / "config.json").write_text("{}")
    recipe = read_recipe("textworld")
    assert find_places(recipe, tmp_path, None, {small}).models == {small: tmp_path / small}
    with pytest.raises(InputError, match=r"Qwen2\.5-7B-Instruct: fetch it"):
        find_places(recipe, tmp_path, None, {large})


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    for name in ("model", "rows"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    right = sha256(tmp_path / "model/config.json")

    def recipe(digest: str) -> Recipe:
        parts = {
            "models": {"model": Model(where="x")},
            "data": {"rows": Data(where="y", sha256={"config.json": digest})},
        }
        return read_recipe("imdb").model_copy(update=parts)

    assert find_places(recipe(right), tmp_path, tmp_path).data == {"rows": tmp_path / "rows"}
    with pytest.raises(InputError, match=f"expected the SHA-256 {'0' * 64}, got {right}: it is another file"):
        find_places(recipe("0" * 64), tmp_path, tmp_path)


def test_a_finished_row_is_not_run_again_and_a_failed_one_stops_no_other(
    imdb: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, steps = imdb
    finish(steps[0], {}, {"reward/mean": 0.1})
    begun: list[str] = []
    monkeypatch.setattr(running, "start", lambda job, *_: begun.append(job.run_name) or len(begun) % 2)
    pages: list[int] = []
    assert running.run_all(steps[:4], lambda: pages.append(1), here=False) == 1
    assert begun == ["ppo-seed0", "nlpo-seed0", "nlpo-corrected-seed0"]
    assert len(pages) == 3


def test_a_row_that_was_made_shorter_is_neither_done_nor_shown(tmp_path: Path) -> None:
    recipe = read_recipe("imdb")

    def asked(iterations: int) -> Asked:
        return Asked(tmp_path, (0,), ("ppo",), (f"iterations={iterations}",))

    (shorter,), (longer,) = (plan(recipe, asked(count), NOWHERE) for count in (2, 3))
    finish(shorter, {SENTIMENT: 0.4}, {SENTIMENT: 0.6})
    assert shorter.is_done() and not longer.is_done()
    markdown = to_markdown(gathered(recipe, asked(3), [longer]))
    assert cells(markdown, "sentiment", "ppo")[3:] == ["–", "", "not run"]


def test_a_folder_of_other_settings_is_refused_though_its_run_is_finished(tmp_path: Path) -> None:
    def asked(*overrides: str, small: bool = True) -> list[Step]:
        chosen = ("environment.template=plain", *overrides)  # auto would read the model
        return plan(read_recipe("tldr"), Asked(tmp_path, (0,), ("ppo",), chosen, small), NOWHERE)

    for step in asked():
        RunFolder.open(tmp_path, step.job.run_name, run_settings(list(step.job.overrides)).resolved(), "auto")
    check(asked())
    check(asked("iterations=3"))  # allows for more
    with pytest.raises(
        InputError, match=r"ppo: .* holds a run with other settings \(rollout.temperature: 0.7 in the folder"
    ):
        check(asked("rollout.temperature=0.5"))
    with pytest.raises(InputError, match="choose another --out"):  # stand-ins' runs are no reproduction
        check(asked(small=False))


def test_an_annotations_settings_are_checked_before_anything_starts(tmp_path: Path) -> None:
    data = Places({}, {"atomic": write_rows(tmp_path / "atomic", "atomic")})

    def checked(*overrides: str) -> None:
        check(plan(read_recipe("atomic"), Asked(tmp_path, (0,), ("nll",), overrides), data))

    checked()
    # The rows never use it: `whetstone train` takes it, `whetstone annotate` refuses it.
    with pytest.raises(InputError, match=r"the annotation annotated-seed0: .*num_beams=4"):
        checked("data.value.num_beams=4", "rollout.engine=vllm")


def test_a_finished_annotation_is_asked_again_before_rows_read_its_data(tmp_path: Path) -> None:
    data = Places({}, {"atomic": write_rows(tmp_path / "atomic", "atomic")})
    steps = plan(read_recipe("atomic"), Asked(tmp_path, (0,), ("nll",), ("iterations=2",)), data)
    annotation, row = steps
    (annotation.job.folder / "value").mkdir(parents=True)
    (annotation.job.folder / "value/values.parquet").touch()
    assert annotation.is_done() and running.steps_to_run(steps) == [annotation, row]
    finish(row, {}, {})
    assert running.steps_to_run(steps) == []


def test_what_begins_with_a_failed_row_is_left_out(imdb: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(
        running, "start", lambda job, *_: begun.append(job.run_name) or "supervised-" in job.run_name
    )
    assert running.run_all(imdb[2][:7], lambda: None, here=False) == 1
    assert begun == ["supervised-seed0", "ppo-seed0", "nlpo-seed0", "nlpo-corrected-seed0"]


def test_a_page_that_fails_ends_no_row_and_hides_no_error(
    imdb: tuple, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space() -> None:
        raise OSError(28, "No space left on device")

    begun: list[str] = []
    monkeypatch.setattr(running, "start", lambda job, *_: begun.append(job.run_name) or 0)
    assert running.run_all(imdb[2][:3], no_space, here=False) == 0
    assert len(begun) == 3
    assert capsys.readouterr().out.count("No space left on device") == 3

    def broken(*_: object) -> int:
        raise InputError("the row's own error")

    monkeypatch.setattr(running, "start", broken)
    with pytest.raises(InputError, match="the row's own error"):
        running.run_all(imdb[2][:1], no_space, here=False)


def test_seeds_that_agree_to_the_last_digit_are_one_measurement() -> None:
    greedy = [Evaluated(0, {"reward/mean": 0.5}, {"reward/mean": 0.01})] * 3
    assert _estimate(Measure(key="reward/mean", factor=100), greedy) == Estimate(50.0, 1.0, 3, "prompts")
    others = [Evaluated(0, {"reward/mean": value}, {"reward/mean": 0.01}) for value in (0.4, 0.6)]
    estimate = _estimate(Measure(key="reward/mean"), others)
    assert estimate is not None and estimate.standard_error == pytest.approx(0.1)
    assert (estimate.num_runs, estimate.over) == (2, "seeds")


def test_the_page_has_published_ours_and_verdicts(imdb: tuple) -> None:
    recipe, options, steps = imdb
    for step in steps:
        if step.row == "ppo":  # 0.49 and 0.50 before; 0.60 and 0.61 after: 0.605 ± 0.005
            shift = 0.01 * step.seed
            finish(
                step,
                {SENTIMENT: 0.49 + shift, PERPLEXITY: 32.0},
                {SENTIMENT: 0.60 + shift, PERPLEXITY: 40.0 + step.seed},
            )
        if step.row == "nlpo corrected":
            finish(step, {SENTIMENT: 0.49}, {SENTIMENT: 0.7})
    markdown = to_markdown(gathered(recipe, options, steps))
    assert cells(markdown, "sentiment", "ppo") == [
        "ppo",
        "0.602",
        "0.605 (earlier), 0.604",
        "0.6050 ± 0.0050",
        "2 seeds",
        "within",
    ]
    assert cells(markdown, "sentiment", "zero-shot")[3:] == ["0.4950 ± 0.0050", "2 seeds", "within"]
    # 33.816: 6.7 away; two seeds are one degree of freedom: 12.7 · 0.5 = 6.35 and the rounding allowed.
    assert cells(markdown, "perplexity", "ppo")[3:] == ["40.50 ± 0.50", "2 seeds", "above"]
    assert cells(markdown, "perplexity", "nlpo") == [
        "nlpo",
        "33.832",
        "32.7 (earlier), 40.8",
        "–",
        "",
        "not run",
    ]
    assert cells(markdown, "sentiment", "nlpo corrected")[1:] == ["–", "", "0.7", "2 seeds", "ours alone"]
    assert EXACT in markdown
    html = to_html(gathered(recipe, options, steps))
    assert EXACT in html and "± standard error over seeds" not in html
    assert (
        "0.6050 ± 0.0050" in html
        and "<svg" in html
        and "http://" not in html.replace("http://www.w3.org", "")
    )
    assert IS_SMALL not in html


def test_a_cell_says_not_found_only_where_its_value_was_looked_for(tmp_path: Path) -> None:
    recipe, options = read_recipe("commongen"), Asked(tmp_path, (0,))
    markdown = to_markdown(gathered(recipe, options, plan(recipe, options, NOWHERE)))
    assert cells(markdown, "METEOR", "ppo") == ["ppo", "not found", "0.2056", "–", "", "not run"]
    # The collection names no BERTScore among what was looked for in the paper.
    assert cells(markdown, "BERTScore", "ppo") == ["ppo", "–", "0.8718", "–", "", "not run"]
    assert cells(markdown, "METEOR", "nlpo corrected")[1] == "–"  # nobody can have published it
    recipe = read_recipe("helpful_harmless")
    markdown = to_markdown(gathered(recipe, options, []))
    assert (cells(markdown, "length", "nll")[1], cells(markdown, "length", "reference")[1]) == (
        "not found",
        "–",
    )
    ours = Estimate(0.2, 0.01, 3)
    assert (verdict(ours, None), verdict(ours, None, sought=False)) == ("not found", "not sought")


def test_the_markdown_page_has_points_of_the_curves_and_samples(imdb: tuple) -> None:
    recipe, options, steps = imdb
    for step in steps:
        if step.row in ("ppo", "nlpo"):
            start = 0.40 + 0.1 * step.seed
            finish(step, {SENTIMENT: start}, {SENTIMENT: start + 0.2})
            text = f"| {step.row} says\nyes " + "x" * 300
            row = {"sample_id": "a", "prompt_text": "Is it?", "generated_text": text}
            step.folder.write_predictions(2, "validation", [row])
    markdown = to_markdown(gathered(recipe, options, steps))
    curves = markdown.split("## Validation curves")[1].split("\n## ")[0]
    assert "### sentiment" in curves and "| iteration | 0 | 2 |" in curves
    assert "| ppo | 0.45 | 0.65 |" in curves and "perplexity" not in curves  # means of two seeds
    samples = markdown.split("## Samples")[1].split("\n## ")[0]
    assert samples.count("> Is it?") == 1
    assert f"- **ppo-seed0**: | ppo says yes {'x' * 225}…" in samples


def test_small_says_in_its_first_lines_that_it_is_no_reproduction(imdb: tuple, tmp_path: Path) -> None:
    recipe = imdb[0]
    options = Asked(tmp_path, (0,), small=True, overrides=("learner.device=cpu",))
    html, markdown = (
        path.read_text() for path in write_page(recipe, options, plan(recipe, options, NOWHERE))
    )
    assert markdown.splitlines()[2] == f"**{IS_SMALL}**"
    assert html.index(IS_SMALL) < html.index("<h2>")
    assert "iterations=2" in markdown and "learner.device=cpu" in markdown  # what differs is said


@settings(deadline=None)
@given(st.floats(0.1, 0.9), st.floats(0.001, 0.1), st.floats(0.0, 0.1), st.integers(2, 4))
def test_a_verdict_is_by_both_errors(ours: float, error: float, theirs_error: float, digits: int) -> None:
    value = Published("r", "row", "m", "paper", f"{0.5:.{digits}f}", theirs_error, "V", "s", "p")
    allowed = 2 * (error**2 + theirs_error**2) ** 0.5 + 0.5 * 10**-digits
    word = verdict(Estimate(ours, error, 1, "prompts"), value)
    if abs(ours - 0.5) < allowed - 1e-9:
        assert word == "within"
    elif abs(ours - 0.5) > allowed + 1e-9:
        assert word == ("above" if ours > 0.5 else "below")


def test_few_seeds_allow_more_than_many() -> None:
    """Student's quantiles: 12.71 of two seeds, 4.30 of three, 2.04 of 31; each 3 standard errors away."""
    value = Published("r", "row", "m", "paper", "0.5000", None, "V", "s", "p")
    words = [verdict(Estimate(0.53, 0.01, seeds), value) for seeds in (2, 3, 31)]
    assert words == ["within", "within", "above"]
    ours, other = [0.52, 0.54], [0.50, 0.51, 0.49]
    # Welch's own degrees of freedom where the other side is known as well as if it had endless seeds.
    assert limit(Estimate(0.53, 0.01, 2), 0.0) == pytest.approx(float(scipy.stats.t.ppf(0.975, 1)))
    assert limit(Estimate(0.53, stdev(ours) / 2**0.5, 2), stdev(other) / 3**0.5) < welch_limit(ours, other)


def test_one_run_without_an_error_is_not_judged() -> None:
    value = Published("r", "row", "m", "paper", "0.5", None, "V", "s", "p")
    assert verdict(Estimate(0.9, None, 1), value) == "no error"


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--list"]) == 0
    assert "imdb" in capsys.readouterr().out
    assert run(["--list", "--json"]) == 0
    recipes = {recipe.pop("name"): recipe for recipe in json.loads(capsys.readouterr().out)}
    assert list(recipes) == recipe_names()
    imdb = read_recipe("imdb")
    assert recipes["imdb"]["rows"] == list(imdb.rows) and recipes["imdb"]["seeds"] == list(imdb.seeds)
    assert recipes["imdb"].keys() == {"rows", "title", "paper", "seeds", "hardware", "hours"}
    for words, message in (
        ([], "expected a recipe's name"),
        (["imbd"], "no such recipe"),
        (["imdb", "--json"], "expected --list --json"),
        (["imdb", "--seeds", "a"], "--seeds a: expected whole numbers"),
        (["imdb", "--rows", "ppo", "--models", str(tmp_path)], "lvwerra/gpt2-imdb: fetch it from the hub"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            run([*words, *(["--out", str(tmp_path / "out")] if words else [])])


def test_page_alone_starts_nothing_and_needs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never: Callable[..., int] = lambda *_: pytest.fail("a run was started")  # noqa: E731
    monkeypatch.setattr(running, "start", never)
    assert run(["tldr", "--page", "--seeds", "0,1", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "reproduction.md").read_text().startswith("# Summaries of posts")


@pytest.mark.long
def test_a_small_recipe_runs_from_start_to_page(tmp_path: Path) -> None:
    assert run(["tldr", "--small", "--out", str(tmp_path)]) == 0
    markdown = (tmp_path / "reproduction.md").read_text()
    assert IS_SMALL in markdown
    for row, verdicts in (("sft", {"below"}), ("ppo", {"not sought"}), ("rloo", {"not sought"})):
        name, published, _, ours, _, verdict_ = cells(markdown, "ROUGE-L", row)
        assert verdict_ in verdicts and ours != "–", (name, published, ours)
    assert cells(markdown, "win rate", "ppo")[1:] == ["64.7 ± 1.5", "", "–", "", "not run"]
    # The same command runs nothing again.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*-seed0/log.txt")}
    assert len(before) == 2 and run(["tldr", "--small", "--out", str(tmp_path)]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
