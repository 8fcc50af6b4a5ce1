"""CIDEr-D against its authors' code and by hand; rarity that does not depend on the batch; whose words."""

import json
import math
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError, RewardError
from contracts.scores import Sample
from reward_servers import requirements
from reward_servers.graders.cider import Cider, CiderOfSplit
from reward_servers.graders.cider_rl4lms_compat import CiderRl4lmsCompat
from reward_servers.part_checks import check_at_hand
from reward_servers.settings import parts
from reward_servers.text import captions
from reward_servers.text.captions import caption_words
from tests.reward_servers.pairs import REAL, made, odd, real

WORDS = st.lists(st.sampled_from("abcdef"), max_size=8).map(" ".join)
SAMPLES = st.lists(
    st.builds(Sample, WORDS, references=st.lists(WORDS, min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=6,
)


def write_references(file: Path, sets: list[list[str]]) -> str:
    file.write_text("".join(json.dumps({"references": texts}) + "\n" for texts in sets), encoding="utf-8")
    return str(file)


def rows_of(samples: list[Sample]) -> list[float]:
    return list(CiderOfSplit(tokenizer="whitespace").compute(samples)["lexical/cider"].rows)


@settings(deadline=None)
@given(SAMPLES)
def test_the_metric_is_that_of_the_authors_on_tokenized_text(samples: list[Sample]) -> None:
    scorer = pytest.importorskip("pycocoevalcap.cider.cider_scorer").CiderScorer(n=4, sigma=6.0)
    for sample in samples:
        scorer += (sample.text, list(sample.references))
    try:
        corpus, rows = scorer.compute_score()
    except ValueError:  # theirs needs one n-gram at least
        rows, corpus = [0.0] * len(samples), 0.0
    assert rows_of(samples) == pytest.approx(list(rows), abs=1e-6)
    value = CiderOfSplit(tokenizer="whitespace").compute(samples)["lexical/cider"].corpus
    assert value == pytest.approx(corpus, abs=1e-6)


@pytest.mark.parametrize("pairs", [made, real])
def test_it_is_that_of_the_authors_on_sentences(pairs: Callable[[], tuple[Sample, ...]]) -> None:
    scorer = pytest.importorskip("pycocoevalcap.cider.cider_scorer").CiderScorer(n=4, sigma=6.0)
    if pairs is real and not REAL.exists():
        pytest.skip(f"no real samples in {REAL}")
    assert len(pairs()) >= 200
    for sample in pairs():
        cut = [" ".join(words) for words in caption_words([sample.text, *sample.references])]
        scorer += (cut[0], cut[1:])
    corpus, rows = scorer.compute_score()
    value = CiderOfSplit().compute(pairs())["lexical/cider"]
    assert list(value.rows) == pytest.approx(list(rows), abs=1e-6) and max(rows) > 1.0
    assert value.corpus == pytest.approx(corpus, abs=1e-6)


def test_cider_by_hand() -> None:
    # Two documents. "a" is in both: weight log 2 - log 2 = 0. "b" and "a b" are in one: log 2. So the
    # unigram vectors are (0, log 2) on both sides, and the bigrams are equal: cosine 1 for orders 1 and 2,
    # nothing for 3 and 4. 10 · (1 + 1 + 0 + 0) / 4 = 5.
    samples = [Sample("a b", references=("a b",)), Sample("c", references=("a",))]
    assert rows_of(samples) == pytest.approx([5.0, 0.0])
    # One word more: 3 words against 2, a gap of one bigram: exp(-1/72). The text's own weights: "b" log 2,
    # "x" log 2, so cosine 1/√2; bigrams "a b" log 2, "b x" log 2: 1/√2 again; "a b x" finds nothing.
    longer = [Sample("a b x", references=("a b",)), samples[1]]
    assert rows_of(longer)[0] == pytest.approx(5.0 / math.sqrt(2) * math.exp(-1 / 72))


def test_equal_prompts_stay_two_samples_and_order_changes_nothing() -> None:
    samples = [
        Sample("a b c d", prompt="p", references=("a b c d",)),
        Sample("x", prompt="p", references=("a b c d",)),
        Sample("e f", prompt="q", references=("e f g",)),
    ]
    rows = rows_of(samples)
    assert rows[0] == pytest.approx(10.0) and rows[1] == 0.0
    assert rows_of(samples[::-1]) == pytest.approx(rows[::-1])
    # RL4LMs keeps the last sample of a prompt, and gives the perfect text that one's score.
    pytest.importorskip("spacy")
    assert CiderRl4lmsCompat().score(samples)[:2] == [0.0, 0.0]
    (value,) = CiderRl4lmsCompat().compute(samples).values()
    assert value.rows == tuple(CiderRl4lmsCompat().score(samples))
    assert value.corpus == pytest.approx(sum(value.rows[1:]) / 2)  # two prompts, so two values


def test_a_batch_of_one_prompt_scores_nothing_as_rl4lms_has_it_but_the_reward_does(tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    sample = Sample("a b c d", references=("a b c d",))
    file = write_references(tmp_path / "refs.jsonl", [["a b c d"], ["e f g h"]])
    assert CiderRl4lmsCompat().score([sample]) == [0.0]
    assert Cider(df_file=file, tokenizer="whitespace").score([sample]) == [pytest.approx(10.0)]


@settings(deadline=None)
@given(SAMPLES)
def test_the_reward_of_a_text_does_not_depend_on_its_batch(samples: list[Sample]) -> None:
    reward = Cider(df_file=str(Path(__file__).with_name("references.jsonl")), tokenizer="whitespace")
    together = reward.score(samples)
    assert together == [score for sample in samples for score in reward.score([sample])]
    assert all(0.0 <= score <= 10.0 + 1e-9 for score in together)


def test_a_file_that_can_not_serve_is_refused_before_the_run(tmp_path: Path) -> None:
    one = write_references(tmp_path / "one.jsonl", [["a"]])
    for file, message in ((one, "one set of references"), (str(tmp_path / "none.jsonl"), "can't be read")):
        with pytest.raises(InputError, match=message):
            check_at_hand("reward", parts([{"name": "cider", "df_file": file}]))
    (tmp_path / "bad.jsonl").write_text('{"references": ["a"]}\n{"refs": []}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2"):
        check_at_hand("reward", parts([{"name": "cider", "df_file": str(tmp_path / "bad.jsonl")}]))
    with pytest.raises(InputError, match=r"df_file: is required"):
        check_at_hand("reward", parts("cider"))


def test_words_are_those_of_the_coco_evaluation() -> None:
    # the words that its tokenizer (Stanford's, in Java) and its list of punctuation leave
    text = "He said: \"Stop (now)!\" - it's 5,000 dollars. The U.S. army isn't, but they won't..."
    expected = "he said stop ( now ) it 's 5,000 dollars the u.s. army is n't but they wo n't"
    assert " ".join(*caption_words([text])) == expected
    assert caption_words(["", " . ", ". a"]) == [[], ["."], ["a"]]  # signs, where a text has nothing else


@pytest.mark.parametrize(
    ("text", "expected"),  # words that pycocoevalcap 1.2 gave for each
    [
        ("it's\u00a0raining", "it 's raining"),
        ("a man\u2009can't\u3000run", "a man ca n't run"),
        ("don\u2019t go\u2026 now", "do n't go now"),
        ("caf\u00e9 \u2019s \u201cquote\u201d it\u2019s", "caf\u00e9 's quote it 's"),
        ("a \u2014 b\u2013c \u00abd\u00bb", "a b c d"),
        ("\ufeffhello a\u200bb it's\ufeffraining a\u2060b a\xadb", "hello a b it 's raining a b ab"),
    ],
)
def test_odd_blanks_quotes_and_dashes_are_the_plain_ones(text: str, expected: str) -> None:
    assert caption_words([text]) == [expected.split()]


@pytest.mark.parametrize("pairs", [odd, made, real])
def test_coco_is_pycocoevalcap_from_the_text_to_the_value(pairs: Callable[[], tuple[Sample, ...]]) -> None:
    pytest.importorskip("pycocoevalcap.cider.cider_scorer")
    from pycocoevalcap.cider.cider import Cider as Official
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    if pairs is real and not REAL.exists():
        pytest.skip(f"no real samples in {REAL}")
    # Line separators are no part of it: that program would take each for the end of a text.
    samples = [
        sample for sample in pairs() if len((sample.text + "".join(sample.references)).splitlines()) == 1
    ]
    assert len(samples) > 50
    targets = PTBTokenizer().tokenize(
        {place: [{"caption": text} for text in sample.references] for place, sample in enumerate(samples)}
    )
    texts = PTBTokenizer().tokenize(
        {place: [{"caption": sample.text}] for place, sample in enumerate(samples)}
    )
    corpus, rows = Official().compute_score(targets, texts)
    value = CiderOfSplit(tokenizer="coco").compute(samples)["lexical/cider"]
    assert list(value.rows) == pytest.approx(list(rows), abs=1e-6)
    assert value.corpus == pytest.approx(corpus, abs=1e-6) and value.corpus > 0.1


JAVA = """#!/usr/bin/env python3
import sys
{trouble}
print(open(sys.argv[-1], encoding="utf-8").read().lower().replace(".", " ."), end="")
"""


def test_the_java_program_is_asked_once_a_batch_and_answers_a_line_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pycocoevalcap").mkdir()
    monkeypatch.setattr(captions, "package_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(requirements, "package_folder", lambda name: tmp_path / name)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    java = tmp_path / "java"

    def install(trouble: str) -> None:
        java.write_text(JAVA.format(trouble=trouble))
        java.chmod(java.stat().st_mode | stat.S_IEXEC)

    install(f"open({str(tmp_path / 'calls')!r}, 'a').write('x')")
    texts = ["A cat.", "two\nlines\u2028here", "", "no \ud800 text", ""]
    assert caption_words(texts, "coco") == [["a", "cat"], ["two", "lines", "here"], [], ["no", "text"], []]
    assert (tmp_path / "calls").read_text() == "x"
    install("sys.exit('no heap')")
    with pytest.raises(RewardError, match="ended with code 1 and 1 lines for 2 texts: no heap"):
        caption_words(["a", "b"], "coco")


@pytest.mark.parametrize(
    ("tokenizer", "remedy"), [("coco", "pip install pycocoevalcap"), ("spacy", "pip install spacy")]
)
def test_a_tokenizer_that_is_not_there_is_refused_with_its_remedy(
    tokenizer: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "package_folder", lambda name: None)
    with pytest.raises(InputError, match=rf"CIDEr with tokenizer={tokenizer} needs .*\n  {remedy}"):
        check_at_hand("metric", parts([{"name": "cider", "tokenizer": tokenizer}], "metrics"))
    with pytest.raises(InputError, match=r"metric=cider_rl4lms_compat needs .*spaCy.*\n  pip install spacy"):
        check_at_hand("metric", parts("cider_rl4lms_compat", "metrics"))


def test_rl4lms_cider_counts_letter_case_and_punctuation() -> None:
    pytest.importorskip("spacy")
    # Two documents: every word that counts here is in one of them or none, so each weighs log 2. Unigrams:
    # "dog" of two words agrees, cosine 1/2. Bigrams: "a dog" is not "A dog". 10 · (1/2 + 0 + 0 + 0) / 4.
    samples = [
        Sample("a dog", prompt="1", references=("A dog",)),
        Sample("x", prompt="2", references=("they run.",)),
    ]
    assert CiderRl4lmsCompat().score(samples)[0] == pytest.approx(1.25)
    assert rows_of([Sample("a dog", references=("a dog",)), samples[1]])[0] == pytest.approx(5.0)
    # "run." is two of its tokens, and the full stop counts: of "they run ." two words and one pair agree.
    cut = [samples[0], Sample("they run", prompt="2", references=("they run.",))]
    closeness = math.exp(-1 / 72)
    expected = 10 * closeness * (2 / math.sqrt(6) + 1 / math.sqrt(2)) / 4
    assert CiderRl4lmsCompat().score(cut)[1] == pytest.approx(expected)


def rl4lms_cider(
    prompts: Sequence[str], texts: Sequence[str], targets: Sequence[Sequence[str]]
) -> list[float]:
    """RL4LMs' arithmetic written anew: dictionaries by prompt, tokens joined by blanks."""
    from spacy.lang.en import English

    tokenizer = English().tokenizer

    def grams(text: str, n: int) -> Counter[Any]:
        words = " ".join(token.text for token in tokenizer(text)).split()
        return Counter(tuple(words[at : at + n]) for at in range(len(words) + 1 - n))

    text_by_prompt = dict(zip(prompts, texts, strict=True))
    of_prompt = dict(zip(prompts, targets, strict=True))
    seen = Counter(
        gram
        for refs in of_prompt.values()
        for gram in {gram for ref in refs for n in (1, 2, 3, 4) for gram in grams(ref, n)}
    )
    total = math.log(len(of_prompt))

    def vector(text: str, n: int) -> dict[Any, float]:
        return {g: count * (total - math.log(max(1, seen[g]))) for g, count in grams(text, n).items()}

    scores = {}
    for prompt, refs in of_prompt.items():
        value = 0.0
        for ref in refs:
            gap = grams(text_by_prompt[prompt], 2).total() - grams(ref, 2).total()
            for n in (1, 2, 3, 4):
                left, right = vector(text_by_prompt[prompt], n), vector(ref, n)
                dot = sum(min(weight, right.get(g, 0.0)) * right.get(g, 0.0) for g, weight in left.items())
                norm = math.hypot(*left.values()) * math.hypot(*right.values())
                value += (dot / norm if norm else 0.0) * math.exp(-(gap**2) / 72) / 4 / len(refs)
        scores[prompt] = 10 * value
    return [scores[prompt] for prompt in prompts]


@pytest.mark.parametrize("pairs", [odd, made, real])
def test_compat_is_rl4lms_arithmetic_on_its_tokens(pairs: Callable[[], tuple[Sample, ...]]) -> None:
    pytest.importorskip("spacy")
    if pairs is real and not REAL.exists():
        pytest.skip(f"no real samples in {REAL}")
    samples = [
        Sample(sample.text, prompt=str(place // 3 * 2 + place % 2), references=sample.references)
        for place, sample in enumerate(pairs()[:: len(pairs()) // 120])
    ]
    expected = rl4lms_cider(
        *zip(*((sample.prompt, sample.text, sample.references) for sample in samples), strict=True)
    )
    assert CiderRl4lmsCompat().score(samples) == pytest.approx(expected, abs=1e-9)
    assert len(set(expected)) > 5 and max(expected) > 0.1


def test_a_text_of_any_length_is_scored() -> None:
    (value,) = CiderOfSplit().compute([Sample("word " * 20_000, references=("a word",))]).values()
    assert value.corpus == 0.0
