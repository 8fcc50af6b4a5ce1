"""Every measure of words, on texts of every script: 1 for equal texts, 0 for unlike ones, or a refusal."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.components import create
from contracts.errors import InputError
from contracts.scores import Metric, Reward, Sample
from reward_servers.graders import METRICS, REWARDS
from reward_servers.graders.distinct_n import DistinctN
from reward_servers.graders.length import Length
from reward_servers.graders.repetition import Repetition
from reward_servers.graders.tfidf_diversity import TfidfDiversity
from reward_servers.requirements import missing, requires
from reward_servers.text.scripts import spaced, words_of, words_or_signs
from reward_servers.text.spice import entries

# Two texts each, without a word or a sign in common.
TEXTS = {
    "english": ("The cat sat on the mat today", "Nobody knows why dogs bark loudly"),
    "chinese": ("今天天气很好，我们去公园散步", "他喜欢读书和写字。"),
    "japanese": ("今日はいい天気です。ちょっと散歩", "ネコガ魚ヲ食ベル"),
    "korean": ("오늘은 날씨가 좋아서 공원에 갔다", "그녀는 어제 책을 한 권 샀다"),
    "arabic": ("مرحبا كيف حالك هذا اليوم", "أحب قراءة الكتب في المساء"),
    "hindi": ("नमस्ते आप आज कैसे हैं", "बच्चे बगीचे में खेल रहे थे"),
    "thai": ("สวัสดีครับวันนี้", "เธอไปทะเล"),
    "khmer": ("សួស្តីអ្នកសុខសប្បាយ", "ឆ្កែរត់លេង"),
    "lao": ("ສະບາຍດີຕອນ", "ແມວໄປ"),
    "burmese": ("မင်္ဂလာပါ", "ရေခဲသည်"),
    "russian": ("Привет, как дела у тебя сегодня", "Он любит читать книги вечером!"),
    "greek": ("Καλημέρα, πώς είσαι σήμερα φίλε", "Το παιδί διαβάζει ένα βιβλίο!"),
    "hebrew": ("שלום מה שלומך היום חבר", "הילד קורא ספר ישן בערב"),
    "emoji": ("😀 🎉 🐱 🐶", "🚗 🛫 🏠 🌧️"),
    "punctuation": ("!!! ... ??? --", ";;; ::: ,,, +++"),
    "mixed": ("GPT 模型 это хорошо 🎉 ok", "Llama ไม่ดี δεν ξέρω"),
}
SEEN_BY_ROUGE_SCORE = ("english", "mixed")
SIGNS = ("emoji", "punctuation")
MEASURES: list[tuple[str, dict[str, Any]]] = [
    *(("rouge", {"rouge_type": kind}) for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum")),
    *[("rouge_combined", {}), ("rouge_l_max", {}), ("rouge_l_max", {"length_limit": 100}), ("meteor", {})],
    *[("bleu", {}), ("bleu", {"variant": "nltk"}), ("bleu", {"variant": "rl4lms"}), ("sacre_bleu", {})],
    *[("sacre_bleu", {"tokenize": name}) for name in ("13a", "intl", "char", "zh")],
    *[("chrf", {}), ("chrf", {"word_order": 2}), ("ter", {}), ("cider", {}), ("coverage", {})],
    *[("exact_match", {}), ("exact_match", {"normalize": True})],
]
OF_LIBRARIES: list[tuple[str, dict[str, Any]]] = [
    *[("rouge", {"tokenizer": "rouge_score"}), ("rouge_combined", {"tokenizer": "rouge_score"})],
    *[("rouge_l_max", {"tokenizer": "py_rouge"}), ("rouge_rl4lms_compat", {})],
]
METRICS_OF_TEXTS = ["rouge", "rouge_l_max", "meteor", "bleu", "sacre_bleu", "chrf", "ter", "exact_match"]


@pytest.fixture(scope="module")
def reference_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("references") / "df.jsonl"
    lines = [json.dumps({"references": [text]}) for pair in TEXTS.values() for text in pair]
    file.write_text("\n".join(lines))
    return file


def reward_of(name: str, options: dict[str, Any], reference_file: Path) -> Any:
    more = {"df_file": str(reference_file)} if name == "cider" else {}
    made: Any = create("reward", name, {**options, **more}, REWARDS, Reward)
    if lacking := missing(requires(type(made))):
        pytest.skip(f"{name} needs {lacking}")
    return made


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize(("name", "options"), MEASURES, ids=[f"{name}{o or ''}" for name, o in MEASURES])
def test_equal_texts_score_the_maximum_in_any_script(
    name: str, options: dict[str, Any], script: str, reference_file: Path
) -> None:
    reward = reward_of(name, options, reference_file)
    text, other = TEXTS[script]
    equal, unlike = reward.score(
        [Sample(answer, references=(text,), meta={"concepts": text.split()}) for answer in (text, other)]
    )
    most = 10.0 if name == "cider" else 1.0
    # METEOR of m equal words is 1 - 0.5 / m³, and the shortest texts here have four.
    assert equal == pytest.approx(most, abs=0.01 if name == "meteor" else 1e-9)
    of_letters = name == "chrf" or options.get("tokenize") == "char"
    assert unlike <= (0.25 if of_letters else 0.03)  # sacrebleu smooths


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("name", METRICS_OF_TEXTS)
def test_a_corpus_of_equal_texts_scores_the_maximum_in_any_script(name: str, script: str) -> None:
    metric: Any = create("metric", name, {}, METRICS, Metric)
    text = TEXTS[script][0]
    for rows in ([Sample(text, references=(text,))], [Sample(text, references=(text,))] * 2):
        for key, value in metric.compute(rows).items():
            assert value.corpus == pytest.approx(0.0 if name == "ter" else 1.0, abs=0.01), key


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize(("name", "options"), OF_LIBRARIES)
def test_rouge_scores_own_words_refuse_what_they_can_not_see(
    name: str, options: dict[str, Any], script: str, reference_file: Path
) -> None:
    reward = reward_of(name, options, reference_file)
    text = TEXTS[script][0]
    if script in (*SEEN_BY_ROUGE_SCORE, *SIGNS):
        (score,) = reward.score([Sample(text, references=(text,))])
        assert score == (0.0 if script in SIGNS else pytest.approx(1.0))  # the package's own number for signs
        return
    with pytest.raises(InputError, match=r"a to z and digits alone, and the reference .* has none; expected"):
        reward.score([Sample(text, references=(text,))])


@pytest.mark.parametrize("script", sorted(set(TEXTS) - {*SEEN_BY_ROUGE_SCORE, *SIGNS}))
def test_spice_refuses_what_it_can_not_parse(script: str) -> None:
    with pytest.raises(InputError, match="SPICE, which parses English, reads the letters a to z"):
        entries([Sample("a cat", references=(TEXTS[script][0],))], "none")


@pytest.mark.parametrize("script", TEXTS)
def test_repetition_is_seen_in_any_script(script: str) -> None:
    text = TEXTS[script][1]
    joint = "" if script in ("chinese", "japanese", "thai", "khmer", "lao", "burmese") else " "
    once, thrice = Sample(text), Sample(joint.join([text] * 3))
    (fresh, looped) = Repetition(n=2).score([once, thrice])
    assert fresh == 0.0 and looped < -0.4
    fresh, looped = DistinctN(n=2).score([once, thrice])
    assert fresh == 1.0 and looped < 0.6
    short, long = Length().score([once, thrice])
    assert short >= 4 and long >= 3 * short - 2
    if script not in SIGNS:
        assert 0.0 < TfidfDiversity().score([once])[0] < 1.0


def test_words_by_hand() -> None:
    assert words_of("GPT-4 模型。नमस्ते, Straße") == ["gpt", "4", "模", "型", "नमस्ते", "strasse"]
    assert words_of("ΟΔΟΣ οδος") == ["οδοσ", "οδοσ"]  # the last letter of a word is no other letter
    assert words_of("می‌خواهم") == ["می‌خواهم"]  # a joiner inside of a word
    assert words_of("สวัสดี") == ["ส", "วั", "ส", "ดี"]  # with their marks
    assert words_of("x² ½ ™ _") == ["x"] and words_of("") == []
    assert words_or_signs("👩‍👩‍👧 ✈️!") == ["👩‍👩‍👧", "✈️", "!"]
    assert words_of(unicodedata.normalize("NFD", "Café")) == words_of("café")
    assert spaced("OK，好。").split() == ["OK", "，", "好", "。"]


@given(st.text(max_size=60))
def test_blanks_are_all_that_is_added(text: str) -> None:
    assert "".join(spaced(text).split()) == "".join(text.split())
    assert spaced(spaced(text)).split() == spaced(text).split()
    assert text.strip() == "" or words_or_signs(text) != []
