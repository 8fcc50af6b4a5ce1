"""SPICE by its authors' Java program, the agreement of captions' objects, attributes and relations.

Anderson et al., "SPICE: Semantic Propositional Image Caption Evaluation" (ECCV 2016). The jar comes with
pycocoevalcap, the parser's models come from Stanford; see `requirements.py`.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from contracts.errors import RewardError
from contracts.scores import Sample
from reward_servers.requirements import check_requirements, spice_folder
from reward_servers.text import captions
from reward_servers.text.references import references_of
from reward_servers.text.scripts import check_latin

# The program's input: plain texts, the COCO evaluation's words, or RL4LMs' words. It parses each again.
Tokenizer = Literal["none", "coco", "spacy"]
REQUIRES = ("java", "pycocoevalcap", "spice-models")
JAR = "spice-1.0.jar"
# Newer Java closes its classes to the libraries in the jar; Java 8 ignores these options.
OPEN = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.math=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)
MAX_CHARACTERS = 2000  # limit of a caption; the parser takes minutes over a text of pages


class Spice:
    """Runner of SPICE's program.

    Example: `Spice(memory_gb=8, timeout_s=600).score([Sample("a cat", references=("a cat",))])`
    """

    requires = REQUIRES

    def __init__(self, memory_gb: int, timeout_s: float, tokenizer: Tokenizer = "none") -> None:
        self._memory_gb = memory_gb
        self._timeout_s = timeout_s
        self._tokenizer = tokenizer

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return the F1 of the scene graphs' tuples for each sample, by one run of the program.

        Raises:
            InputError: a sample has no reference, or a requirement is missing.
            RewardError: the program failed or took too long.
        """
        check_requirements(Spice, "spice")
        return f_scores(self._run(entries(samples, self._tokenizer)), len(samples))

    def _run(self, entries: list[dict[str, Any]]) -> Any:
        folder = spice_folder()
        assert folder is not None  # a requirement
        with tempfile.TemporaryDirectory(prefix="spice-") as scratch:
            input_file, output_file = Path(scratch) / "in.json", Path(scratch) / "out.json"
            input_file.write_text(json.dumps(entries), encoding="utf-8")
            command = ["java", *OPEN, f"-Xmx{self._memory_gb}G", "-jar", JAR]
            command += [str(input_file), "-out", str(output_file), "-silent"]
            try:
                ended = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=self._timeout_s, check=False
                )
            except subprocess.TimeoutExpired:
                raise RewardError(
                    f"SPICE took longer than {self._timeout_s:g} s over {len(entries)} texts; raise timeout_s"
                ) from None
            if ended.returncode != 0 or not output_file.exists():
                raise RewardError(f"SPICE ended with code {ended.returncode}: {ended.stderr.strip()[-500:]}")
            return json.loads(output_file.read_text(encoding="utf-8"))


def f_scores(answer: Any, count: int) -> list[float]:
    """Return the F1 of each entry; an entry without tuples counts as 0.

    Raises:
        RewardError: SPICE gave fewer answers than texts.

    >>> nothing = {"image_id": 0, "scores": {"All": {"f": "NaN"}}}
    >>> half = {"image_id": 1, "scores": {"All": {"f": 0.5}}}
    >>> f_scores([half, nothing], 2)
    [0.0, 0.5]
    """
    f1s = {int(entry["image_id"]): entry["scores"]["All"]["f"] for entry in answer}
    lacking = [number for number in range(count) if number not in f1s]
    if lacking:
        raise RewardError(f"SPICE answered for {len(f1s)} of {count} texts")
    values = [float("nan") if f1s[number] is None else float(f1s[number]) for number in range(count)]
    return [value if value == value else 0.0 for value in values]


def entries(samples: Sequence[Sample], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the captions for the program, numbered so that equal prompts stay apart.

    >>> entries([Sample("A cat.", references=("It's a cat.",))], "none")
    [{'image_id': 0, 'test': 'A cat.', 'refs': ["It's a cat."]}]

    Raises:
        InputError: a sample has no reference, or one in another script than English.
    """
    for sample in samples:
        for reference in references_of(sample, "SPICE"):
            check_latin(reference, "SPICE, which parses English,", "another reward or metric, such as cider")
    if tokenizer == "none":
        texts = [(sample.text, list(references_of(sample, "SPICE"))) for sample in samples]
    else:
        cut = captions.captions_of(samples, "SPICE", tokenizer)
        texts = [(" ".join(text), [" ".join(words) for words in references]) for text, references in cut]
    return [
        {
            "image_id": number,
            "test": text[:MAX_CHARACTERS],
            "refs": [reference[:MAX_CHARACTERS] for reference in references],
        }
        for number, (text, references) in enumerate(texts)
    ]


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer whose requirements this machine lacks.

    Raises:
        InputError: a requirement is missing; the message has the commands that install it.
    """
    if tokenizer != "none":
        captions.check_tokenizer(tokenizer, "SPICE")
