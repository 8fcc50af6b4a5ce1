"""SummaC by hand on tables of made-up probabilities, and with a tiny model of inference."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.scores import Sample
from reward_servers.graders.summac_conv import SummacConv
from reward_servers.graders.summac_zs import SummacZs
from reward_servers.models.nli import judge, nli_model
from reward_servers.models.summac import EDGES, ConvolutionHead, images, pieces, zero_shot
from reward_servers.part_checks import check_at_hand
from reward_servers.settings import parts
from tests.reward_servers.tiny_models import make_classifier

NLI = ("contradiction", "neutral", "entailment")
# two pieces of the document (rows), three of the summary
IMAGE = np.array(
    [
        [[0.9, 0.2, 0.1], [0.4, 0.1, 0.7]],  # entailment
        [[0.0, 0.3, 0.2], [0.1, 0.6, 0.2]],  # contradiction
        [[0.1, 0.5, 0.7], [0.5, 0.3, 0.1]],  # neutral
    ]
)
DOCUMENT = "the cat sat here today. the dog ran a lot.\n\nthe film was good then."
SUMMARY = "the cat sat and ran. the film was bad."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_classifier(tmp_path_factory.mktemp("nli"), labels=NLI))


def write_head(file: Path, width: int, **changes: object) -> str:
    arrays = {
        "mlp.weight": np.linspace(-1, 1, width)[None],
        "mlp.bias": np.array([0.25]),
        "layer_final.weight": np.array([[0.5, 0.0, 0.0], [0.0, 1.0, 0.5]]),
        "layer_final.bias": np.array([0.1, -0.1]),
    }
    np.savez(file, **(arrays | changes))
    return str(file)


@pytest.mark.parametrize(
    ("op1", "op2", "use_ent", "use_con", "expected"),
    [
        # the best entailment of each piece is 0.9, 0.2, 0.7, the worst contradiction 0.1, 0.6, 0.2
        ("max", "mean", True, True, (0.8 - 0.4 + 0.5) / 3),
        ("max", "mean", True, False, 1.8 / 3),
        ("max", "min", True, True, -0.4),
        ("max", "max", False, True, 0.9),
        ("min", "mean", True, False, (0.4 + 0.1 + 0.1) / 3),
        ("mean", "max", True, False, 0.65),
    ],
)
def test_zero_shot_by_hand(op1: str, op2: str, use_ent: bool, use_con: bool, expected: float) -> None:
    assert zero_shot(IMAGE, op1, op2, use_ent, use_con) == pytest.approx(expected)  # type: ignore[arg-type]


def test_the_head_by_hand(tmp_path: Path) -> None:
    # Bins of 0.02: a piece's histogram has a 1 in the bins of its two entailments. With even50 the weight of
    # bin k is -1 + 2k/49. Piece 1: 0.9 is in bin 45, 0.4 in bin 20 (edges in floating point; taken from
    # numpy below), and so on; the outputs are weight + weight + 0.25, their mean m goes into all three
    # features: logits 0.5 m + 0.1 and 1.5 m - 0.1.
    head = ConvolutionHead(write_head(tmp_path / "h.npz", 50), "even50", "e", 1, "mean")
    weights = np.linspace(-1, 1, 50)
    bins = np.digitize(IMAGE[0], EDGES["even50"]) - 1  # (2, 3)
    mean = (weights[bins].sum(axis=0) + 0.25).mean()
    first, second = 0.5 * mean + 0.1, 1.5 * mean - 0.1
    assert head.score([IMAGE]) == pytest.approx(np.exp(second) / (np.exp(first) + np.exp(second)))
    lowest = ConvolutionHead(write_head(tmp_path / "h.npz", 50), "even50", "e", 1, "min")
    assert lowest.score([IMAGE]) != pytest.approx(head.score([IMAGE]))


@pytest.fixture(scope="module")
def wide_head(tmp_path_factory: pytest.TempPathFactory) -> ConvolutionHead:
    """For 23 bins of percentiles, two labels and two models."""
    file = write_head(tmp_path_factory.mktemp("head") / "head.npz", 23 * 2 * 2)
    return ConvolutionHead(file, "percentile", "ec", 2, "mean")


@settings(deadline=None)
@given(st.integers(1, 14), st.integers(1, 5))
def test_the_head_gives_a_fraction_and_minds_no_order_of_the_document(
    wide_head: ConvolutionHead, num_pieces: int, num_rows: int
) -> None:
    generator = np.random.default_rng(num_pieces * 10 + num_rows)
    stack = [generator.dirichlet(np.ones(3), (num_rows, num_pieces)).transpose(2, 0, 1) for _ in range(2)]
    value = wide_head.score(stack)
    assert 0.0 < value < 1.0
    assert wide_head.score([image[:, ::-1] for image in stack]) == pytest.approx(value)


def test_pieces_are_what_is_longer_than_ten_characters() -> None:
    assert pieces(DOCUMENT, "sentence") == [
        "the cat sat here today.",
        "the dog ran a lot.",
        "the film was good then.",
    ]
    assert pieces("The first one. And so on it goes. No.", "sentence") == [
        "The first one.",
        "And so on it goes.",
    ]
    assert pieces(DOCUMENT, "paragraph") == DOCUMENT.split("\n\n")
    # each with the one after it
    assert pieces("The first one. The second.", "2sents") == ["The first one. The second.", "The second."]
    assert pieces(" x ", "sentence") == ["x"] and pieces(" ", "document") == []


def test_images_ask_for_every_pair_once_in_order(model: str) -> None:
    judged_pairs: list[tuple[str, str]] = []

    def judged(pairs: list[tuple[str, str]]) -> list[tuple[float, ...]]:
        judged_pairs.extend(pairs)
        return [(float(number), 0.0, 0.0) for number, _ in enumerate(pairs, start=1)]

    first, empty = images(
        [("A long one.\nAnother one.", "Summary one.\nSummary two."), ("x", "")], "paragraph", judged
    )
    assert judged_pairs[:2] == [("A long one.", "Summary one."), ("A long one.", "Summary two.")]
    assert len(judged_pairs) == 4
    assert first[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert not empty.any() and zero_shot(empty, "max", "mean", True, True) == 0.0


def test_the_labels_are_found_by_their_names(model: str, tmp_path: Path) -> None:
    from reward_servers.models.classifier import classifier

    nli = nli_model(model)
    assert (nli.entailment_ix, nli.contradiction_ix, nli.order) == (2, 0, [2, 0, 1])
    pair = ("the cat sat", "a dog ran")
    probabilities = classifier(model, 500, "begin", 16_384).probabilities([pair[0]], [pair[1]])[0].tolist()
    expected = (probabilities[2], probabilities[0], probabilities[1])
    assert judge(model).judge([pair, pair]) == [pytest.approx(expected)] * 2
    nameless = str(make_classifier(tmp_path, labels=("a", "b", "c")))
    with pytest.raises(InputError, match="labels a, b, c; expected three, of which one says entailment"):
        check_at_hand("reward", parts([{"name": "summac_zs", "model": nameless}]))


def test_neither_batches_nor_order_change_a_score(model: str) -> None:
    samples = [
        Sample(SUMMARY, prompt=f"Summarize: {DOCUMENT}"),
        Sample("", prompt=DOCUMENT),
        Sample("good film", prompt=DOCUMENT * 50),
        Sample("</s> </s>", prompt="x"),
        Sample("film " * 20_000, prompt=DOCUMENT),
    ]
    options = {"model": model, "prompt_prefix": "Summarize: "}
    together = SummacZs(**options).score(samples)
    alone = SummacZs(**options, tokens_per_batch=1).score(samples[::-1])[::-1]
    assert together == pytest.approx(alone, abs=1e-5)
    assert all(-1.0 <= value <= 1.0 for value in together) and together[1] == 0.0
    assert together[0] == pytest.approx(SummacZs(model=model).score([Sample(SUMMARY, prompt=DOCUMENT)])[0])
    value = SummacZs(**options).compute(samples)["consistency/summaczs"]
    assert list(value.rows) == pytest.approx(together)


def test_the_trained_variant_runs_with_its_weights_and_never_without(model: str, tmp_path: Path) -> None:
    weights = write_head(tmp_path / "head.npz", 23)  # 23 bins of percentiles, entailment alone, one model
    samples = [Sample(SUMMARY, prompt=DOCUMENT), Sample("", prompt=DOCUMENT)]
    value = SummacConv(weights=weights, models=(model,)).compute(samples)["consistency/summacconv"]
    assert all(0.0 < row < 1.0 for row in value.rows) and value.rows[0] != value.rows[1]

    def refusal(**options: object) -> str:
        with pytest.raises(InputError) as refused:
            check_at_hand("metric", parts([{"name": "summaCConv", "models": [model], **options}], "metrics"))
        return str(refused.value)

    assert "weights: is required" in refusal()
    (tmp_path / "head.bin").write_bytes(b"x")
    assert "is a pickle" in refusal(weights=str(tmp_path / "head.bin"))
    assert "can't be read" in refusal(weights=str(tmp_path / "none.npz"))
    assert "shape (1, 23); expected (1, 50)" in refusal(weights=weights, bins="even50")
    np.savez(tmp_path / "pickled.npz", **{"mlp.weight": np.array([{}], dtype=object)})
    assert "can't be read" in refusal(weights=str(tmp_path / "pickled.npz"))
    np.savez(tmp_path / "less.npz", **{"mlp.weight": np.zeros((1, 23))})
    assert "lacks mlp.bias" in refusal(weights=str(tmp_path / "less.npz"))


def test_weights_in_safetensors_are_the_same_head(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    write_head(tmp_path / "head.npz", 50)
    save_file(dict(np.load(tmp_path / "head.npz")), tmp_path / "head.safetensors")
    scores = [
        ConvolutionHead(str(tmp_path / f"head.{kind}"), "even50", "e", 1, "mean").score([IMAGE])
        for kind in ("npz", "safetensors")
    ]
    assert scores[0] == scores[1]
