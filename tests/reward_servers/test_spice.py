"""SPICE's program is asked and answered rightly (a stand-in of ours; the real one needs a download)."""

import json
import stat
from pathlib import Path

import pytest

from contracts.errors import InputError, RewardError
from contracts.scores import Sample
from reward_servers import requirements
from reward_servers.graders.spice import Spice, SpiceOfSplit
from reward_servers.graders.spider import Spider
from reward_servers.part_checks import check_at_hand
from reward_servers.requirements import REQUIREMENTS, missing, spice_folder
from reward_servers.settings import parts
from reward_servers.text import spice

# Answers in reverse, with F1 = 1 where the text is one of the references, NaN where it is empty.
STAND_IN = """#!/usr/bin/env python3
import json, os, sys, time
words = sys.argv[1:]
json.dump(words + [os.getcwd()], open({log!r}, "w"))
{trouble}
asked = json.load(open(words[words.index("-jar") + 2]))
answer = [
    {{"image_id": one["image_id"],
      "scores": {{"All": {{"f": "NaN" if not one["test"] else float(one["test"] in one["refs"])}}}}}}
    for one in reversed(asked)
]
json.dump(answer, open(words[words.index("-out") + 1], "w"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which all is there, and java is a stand-in."""
    lib = tmp_path / "pycocoevalcap" / "spice" / "lib"
    lib.mkdir(parents=True)
    for jar in requirements.SPICE_MODELS:
        (lib / jar).touch()
    monkeypatch.setattr(requirements, "package_folder", lambda name: tmp_path / name)
    install_java(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def install_java(folder: Path, trouble: str = "") -> None:
    java = folder / "java"
    java.write_text(STAND_IN.format(log=str(folder / "log.json"), trouble=trouble))
    java.chmod(java.stat().st_mode | stat.S_IEXEC)


SAMPLES = [
    Sample("a cat", prompt="p", references=("a dog", "a cat")),
    Sample("", prompt="p", references=("a cat",)),
    Sample("a cow", prompt="p", references=("a cat",)),
]


def test_scores_come_in_order_for_equal_prompts_too(folder: Path) -> None:
    assert Spice(memory_gb=2).score(SAMPLES) == [1.0, 0.0, 0.0]
    assert SpiceOfSplit().compute(SAMPLES)["lexical/spice"].corpus == pytest.approx(1 / 3)
    words = json.loads((folder / "log.json").read_text())
    assert "-Xmx8G" in words and words[-1] == str(folder / "pycocoevalcap" / "spice")
    assert not any(Path(word).exists() for word in words if word.endswith(".json"))  # nothing is left behind


def test_the_program_reads_texts_as_they_are_or_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL4LMs hands it spaCy's tokens, joined by blanks."""
    pytest.importorskip("spacy")
    samples = [Sample("The cat's asleep.", references=("It's a cat.", "A dog"))]
    (plain,) = spice.entries(samples, "none")
    assert (plain["test"], plain["refs"]) == ("The cat's asleep.", ["It's a cat.", "A dog"])
    (tokens,) = spice.entries(samples, "spacy")
    assert (tokens["test"], tokens["refs"]) == ("The cat 's asleep .", ["It 's a cat .", "A dog"])
    (long,) = spice.entries([Sample("word " * 1000, references=("a",))], "spacy")
    assert len(long["test"]) == spice.MAX_CHARACTERS


def test_the_tokenizer_of_spice_is_looked_for_before_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_at_hand("reward", parts([{"name": "spice", "tokenizer": "none"}]))
    monkeypatch.setattr(
        requirements, "package_folder", lambda name: None if name == "spacy" else folder / name
    )
    for kind in ("reward", "metric"):
        with pytest.raises(InputError, match=r"SPICE with tokenizer=spacy needs .*\n  pip install spacy"):
            check_at_hand(kind, parts([{"name": "spice", "tokenizer": "spacy"}]))


def test_a_program_that_fails_or_hangs_is_an_error_that_says_so(folder: Path) -> None:
    install_java(folder, "sys.exit('no heap')")
    with pytest.raises(RewardError, match="ended with code 1: no heap"):
        Spice().score(SAMPLES)
    install_java(folder, "time.sleep(60)")
    with pytest.raises(RewardError, match=r"longer than 0\.5 s over 3 texts; raise timeout_s"):
        Spice(timeout_s=0.5).score(SAMPLES)
    with pytest.raises(RewardError, match="answered for 1 of 2"):
        spice.f_scores([{"image_id": 0, "scores": {"All": {"f": 0.1}}}], 2)


def test_spider_is_the_weighted_sum_of_both(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "refs.jsonl"
    file.write_text('{"references": ["a cat is here"]}\n{"references": ["the dog ran"]}\n')
    sample = Sample("a cat is here", references=("a cat is here",))  # CIDEr 10, SPICE 1
    assert Spider(df_file=str(file)).score([sample]) == [pytest.approx(5.5)]
    weighted = Spider(df_file=str(file), spice_coeff=2.0, cider_coeff=0.1)
    assert weighted.score([sample]) == [pytest.approx(3.0)]


def test_what_is_missing_is_refused_with_the_command_that_mends_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_at_hand("reward", parts("spice"))
    (folder / "pycocoevalcap" / "spice" / "lib" / requirements.SPICE_MODELS[1]).unlink()
    with pytest.raises(
        InputError, match=r"reward=spice needs .*spice-models.*\n  cd .*get_stanford_models\.py"
    ):
        check_at_hand("reward", parts("spice"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match=r"java.*spice-models.*\n  apt install default-jre-headless"):
        check_at_hand("metric", parts("spice", "metrics"))


def test_every_requirement_that_a_built_in_names_is_described() -> None:
    from contracts.components import find
    from reward_servers.graders import METRICS, REWARDS

    for kind, table in (("reward", REWARDS), ("metric", METRICS)):
        for name in table:
            missing(requirements.requires(find(kind, name, table)))
    assert all(requirement.remedy and requirement.what for requirement in REQUIREMENTS.values())
    with pytest.raises(InputError, match="requires 'jave'; expected one of: java"):
        missing(["jave"])


def test_the_packages_folder_is_found_without_importing_it() -> None:
    pytest.importorskip("pycocoevalcap")
    folder = spice_folder()
    assert folder is not None and (folder / spice.JAR).exists()
