"""Pairs per second of ROUGE and METEOR rewards: ours, as RL4LMs calls them, and through Serve."""

import random
import re
import shutil
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.outcome import OUT, in_turns, publish, ratio, seconds
from contracts.scores import Sample
from reward_servers.local import LocalRewardClient
from reward_servers.settings import RewardServersSettings, ServerSettings, parts
from reward_servers.text import wordnet
from reward_servers.text.words import words

ROOT = Path(__file__).parents[1]
WORDS_A_TEXT, BATCH, IN_FLIGHT = 24, 64, 4
ROUNDS, SERVE_ROUNDS = 5, 9
PAIRS_OF_OURS, PAIRS_OF_THEIRS = 8 * BATCH, 48
REWARDS = parts([{"name": "rouge", "rouge_type": "rougeL", "references": "first"}, "meteor"])


def main() -> None:
    pairs = fresh_pairs()
    rows: dict[str, Any] = {}
    details: dict[str, Any] = {}
    theirs = {"rouge": rouge_their_way(), "meteor": meteor_their_way()}
    for part in REWARDS:
        ours = LocalRewardClient([part])
        bare, call = theirs[part.name], a_call_a_sample(theirs[part.name])
        check_agreement(ours, call, next(pairs)[:BATCH])

        def our_rate(ours: LocalRewardClient = ours) -> float:
            samples = next(pairs)[:PAIRS_OF_OURS]
            return len(samples) / seconds(lambda: [ours.submit(batch).result() for batch in batches(samples)])

        def rate_of(score: Callable[[Sample], float]) -> float:
            samples = next(pairs)[:PAIRS_OF_THEIRS]
            return len(samples) / seconds(lambda: [score(sample) for sample in samples])

        sides = {
            "ours": our_rate,
            "RL4LMs' way": lambda call=call: rate_of(call),
            "its arithmetic alone": lambda bare=bare: rate_of(lambda s: bare(s.text, s.references[0])),
        }
        rates_of = in_turns(sides, ROUNDS)
        for side, rates in rates_of.items():
            rows[f"{part.name}: {side}, pairs/s"] = statistics.median(rates)
        rows[f"{part.name}: ours / RL4LMs' way (at least 5)"] = ratio(
            rates_of["ours"], rates_of["RL4LMs' way"]
        )
        details[part.name] = rates_of
    through_serve(pairs, rows, details)
    publish("score", f"rewards of texts of {WORDS_A_TEXT} words, batches of {BATCH}", rows, details)


def through_serve(pairs: Iterator[list[Sample]], rows: dict[str, Any], details: dict[str, Any]) -> None:
    """Measure the cost of the way to a replica and back, with a run's calls in flight and with one call."""
    import ray

    from reward_servers.serving.app import deploy, shutdown
    from reward_servers.serving.client import RewardClient

    settings = RewardServersSettings(default=ServerSettings(cache_size=0))
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        deploy(REWARDS, (), settings, http=False)
        for part in REWARDS:
            local, remote = LocalRewardClient([part]), RewardClient([part], settings)
            for client in (local, remote):  # both have cached the words of all texts
                client.submit(next(pairs)).result()

            def of(client: Any, num_batches: int) -> float:
                """Return the seconds for so many batches, all submitted at once, as in a run."""
                some = batches(next(pairs)[: num_batches * BATCH])
                return seconds(
                    lambda: [future.result() for future in [client.submit(batch) for batch in some]]
                )

            for what, count in ((f"{IN_FLIGHT} calls in flight", IN_FLIGHT), ("a lone call", 1)):
                sides = {
                    "here": lambda count=count, local=local: of(local, count),
                    "served": lambda count=count, remote=remote: of(remote, count),
                }
                times = in_turns(sides, SERVE_ROUNDS, warm_up=3)
                limit = " (less than 0.15)" if count > 1 else ""
                rows[f"{part.name}: Serve adds, {what}{limit}"] = ratio(times["served"], times["here"]) - 1
                for side, laps in times.items():
                    rows[f"{part.name}: {side}, {what}, ms a batch"] = 1000 * statistics.median(laps) / count
                details[f"{part.name}, {what}"] = times
            remote.close()
    finally:
        shutdown()
        ray.shutdown()


def rouge_their_way() -> Callable[[str, str], float]:
    """Score ROUGE as RL4LMs does: a new scorer of four kinds and a bootstrap of 1,000 samples a text."""
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.scoring import BootstrapAggregator

    def score(text: str, target: str) -> float:
        scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
        aggregator = BootstrapAggregator(n_samples=1000)
        aggregator.add_scores(scorer.score(target, text))
        return float(aggregator.aggregate()["rougeL"].mid.fmeasure)

    return score


def meteor_their_way() -> Callable[[str, str], float]:
    """Score METEOR as RL4LMs does: NLTK's function with its WordNet reader and stemmer, one text a call."""
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.stem.porter import PorterStemmer
    from nltk.translate.meteor_score import single_meteor_score

    # NLTK reads only from given folders, and no file with a second hard link: give it a copy.
    copy = OUT / "nltk" / "corpora" / "wordnet"
    shutil.copytree(wordnet.folder(), copy, dirs_exist_ok=True)
    nltk.data.path.append(str(OUT / "nltk"))
    warnings.simplefilter("ignore")  # NLTK warns that this WordNet is English alone
    reader, stemmer = WordNetCorpusReader(str(copy), None), PorterStemmer()

    def score(text: str, target: str) -> float:
        meteor = single_meteor_score(words(target), words(text), stemmer=stemmer, wordnet=reader)
        return float(meteor)

    return score


def a_call_a_sample(score: Callable[[str, str], float]) -> Callable[[Sample], float]:
    """Write and read a locked Arrow file of one row, RL4LMs' cost of a `datasets` metric.

    The library has dropped metrics; these are the steps of its `Metric.compute` with the same classes.
    """
    from datasets import Dataset, Features, Value
    from datasets.arrow_reader import ArrowReader
    from datasets.arrow_writer import ArrowWriter
    from datasets.info import DatasetInfo
    from filelock import FileLock

    file = OUT / "calls" / "one.arrow"
    file.parent.mkdir(parents=True, exist_ok=True)
    features = Features({"predictions": Value("string"), "references": Value("string")})

    def call(sample: Sample) -> float:
        with FileLock(f"{file}.lock"):
            writer = ArrowWriter(path=str(file), features=features)
            writer.write_batch({"predictions": [sample.text], "references": [sample.references[0]]})
            writer.finalize()
        reader = ArrowReader(str(file.parent), DatasetInfo(features=features))
        row = Dataset(**reader.read_files([{"filename": file.name}]))[0]
        file.unlink()
        return score(row["predictions"], row["references"])

    return call


def check_agreement(
    ours: LocalRewardClient, theirs: Callable[[Sample], float], samples: Sequence[Sample]
) -> None:
    """Check that both sides do the same work."""
    for score, sample in zip(ours.submit(samples).result(), samples, strict=True):
        expected = theirs(sample)
        assert score.total is not None and abs(score.total - expected) < 1e-9, (sample, score, expected)


def batches(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    return [samples[begin : begin + BATCH] for begin in range(0, len(samples), BATCH)]


def fresh_pairs() -> Iterator[list[Sample]]:
    """Make pairs of reference and text from this project's prose, mixed so that no pair recurs.

    The text keeps two thirds of its reference's words in order; the others come from elsewhere.
    """
    prose = " ".join(path.read_text() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
    vocabulary = re.findall(r"[A-Za-z]+|[.,:;]", prose)
    random_ = random.Random(0)
    for _ in cycle([None]):
        shift = random_.randrange(WORDS_A_TEXT)
        targets = [
            vocabulary[begin : begin + WORDS_A_TEXT]
            for begin in range(shift, len(vocabulary) - WORDS_A_TEXT, WORDS_A_TEXT)
        ]
        random_.shuffle(targets)
        yield [
            Sample(
                " ".join(random_.choice(vocabulary) if random_.random() < 1 / 3 else word for word in target),
                references=(" ".join(target),),
            )
            for target in targets
        ]


if __name__ == "__main__":
    main()
