"""The comparison's page, made of invented runs."""

from pathlib import Path

import pytest
import yaml

from contracts.errors import InputError
from services.commands.compare import run as compare
from services.runs.folder import RunFolder
from tests.services.runs.report.test_report import CONFIG, Page, invented_run


def runs(place: Path) -> list[RunFolder]:
    """Two seeds of one group, and a run with another clip range, all with the same validation prompts."""
    made = []
    for name, seed, clip_range in (("a-seed0", 0, 0.2), ("a-seed1", 1, 0.2), ("b", 0, 0.1)):
        folder = RunFolder(invented_run(place / "made", iterations=12).path.rename(place / name))
        config = {**CONFIG, "seed": seed, "algorithm": {"name": "ppo", "clip_range": clip_range}}
        folder.config_file.write_text(yaml.safe_dump(config))
        made.append(folder)
    return made


def test_the_page_has_all_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = runs(tmp_path)
    assert compare([str(folder.path) for folder in folders]) == 0
    output = tmp_path / "comparison.html"
    assert capsys.readouterr().out.strip() == str(output)
    page = Page(output.read_text(encoding="utf-8"))
    assert page.addresses == [] and not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "a-seed0, a-seed1 0, 1 12 of 40" in page.text
    assert "Settings that differ setting a b algorithm.clip_range 0.2 0.1" in page.text
    for title in ("Reward", "KL to the reference", "Throughput: trained", "length/mean_words"):
        assert title in page.text
    assert "b: one run, so how far its seeds would spread is not known" in page.text
    assert page.classes.count("texts") == 6  # prompts side by side
    assert page.tags.count("table") == page.classes.count("scroll") == 4  # each scrolls in its own box


def test_what_a_model_writes_is_shown_and_never_run(tmp_path: Path) -> None:
    folders = runs(tmp_path)
    row = {"sample_id": "1", "prompt_text": "<b>&", "generated_text": "<script>alert(1)</script>{{ 7 * 7 }}"}
    for folder in folders:
        folder.write_predictions(10, "val", [row])
    compare([*(str(folder.path) for folder in folders), "--output", str(tmp_path / "here.html")])
    page = Page((tmp_path / "here.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>{{ 7 * 7 }}" in page.text


def test_runs_that_have_just_begun_are_a_page(tmp_path: Path) -> None:
    new = [RunFolder.open(tmp_path, name, {**CONFIG, "seed": 3}, resume="auto") for name in "ab"]
    assert compare([str(folder.path) for folder in new]) == 0
    page = Page((tmp_path / "comparison.html").read_text(encoding="utf-8"))
    assert "These runs differ only in their seed." in page.text
    assert "No evaluation yet." in page.text and "no validation prompt in common" in page.text


def test_wrong_words_are_refused(tmp_path: Path) -> None:
    folder = invented_run(tmp_path, iterations=1)
    with pytest.raises(InputError, match="there is no such folder"):
        compare([str(folder.path), str(tmp_path / "nothing")])
    with pytest.raises(InputError, match="expected two or more different runs"):
        compare([str(folder.path)])
    with pytest.raises(InputError, match=r"--output .* is a folder"):
        compare([str(folder.path), str(folder.path), "--output", str(tmp_path)])
