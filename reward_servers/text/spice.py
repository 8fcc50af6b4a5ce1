"""SPICE by its authors' Java program: how well the objects, attributes and relations of two captions agree.

Anderson et al., "SPICE: Semantic Propositional Image Caption Evaluation" (ECCV 2016). The jar comes with
pycocoevalcap, the parser's models from Stanford; see `requirements.py`.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import RewardError
from contracts.scores import Sample
from reward_servers.requirements import check_requirements, spice_folder
from reward_servers.text.references import references_of

REQUIRES = ("java", "pycocoevalcap", "spice-models")
JAR = "spice-1.0.jar"
# Newer Java closes its own classes to the libraries in the jar; Java 8 knows no such option and skips it.
OPEN = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.math=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)
MAX_CHARACTERS = 2000  # of a caption; the parser takes minutes over a text of pages


class Spice:
    """Example: `Spice(memory_gb=8, timeout_s=600).score([Sample("a cat", references=("a cat",))])`"""

    requires = REQUIRES

    def __init__(self, memory_gb: int, timeout_s: float) -> None:
        self._memory_gb = memory_gb
        self._timeout_s = timeout_s

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """F1 of the scene graphs' tuples, one a sample; one run of the program for all.

        Raises:
            InputError: a sample has no reference, or a requirement is missing.
            RewardError: the program failed or took too long.
        """
        check_requirements(Spice, "spice")
        return f_scores(
            self._run([_entry(number, sample) for number, sample in enumerate(samples)]), len(samples)
        )

    def _run(self, entries: list[dict[str, Any]]) -> Any:
        folder = spice_folder()
        assert folder is not None  # a requirement
        with tempfile.TemporaryDirectory(prefix="spice-") as scratch:
            asked, answered = Path(scratch) / "in.json", Path(scratch) / "out.json"
            asked.write_text(json.dumps(entries), encoding="utf-8")
            command = ["java", *OPEN, f"-Xmx{self._memory_gb}G", "-jar", JAR]
            command += [str(asked), "-out", str(answered), "-silent"]
            try:
                ended = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=self._timeout_s, check=False
                )
            except subprocess.TimeoutExpired:
                raise RewardError(
                    f"SPICE took longer than {self._timeout_s:g} s over {len(entries)} texts; raise timeout_s"
                ) from None
            if ended.returncode != 0 or not answered.exists():
                raise RewardError(f"SPICE ended with code {ended.returncode}: {ended.stderr.strip()[-500:]}")
            return json.loads(answered.read_text(encoding="utf-8"))


def f_scores(answer: Any, count: int) -> list[float]:
    """F1 by entry. What holds no tuple at all has no F1, and counts as 0.

    >>> nothing = {"image_id": 0, "scores": {"All": {"f": "NaN"}}}
    >>> half = {"image_id": 1, "scores": {"All": {"f": 0.5}}}
    >>> f_scores([half, nothing], 2)
    [0.0, 0.5]
    """
    found = {int(entry["image_id"]): entry["scores"]["All"]["f"] for entry in answer}
    lacking = [number for number in range(count) if number not in found]
    if lacking:
        raise RewardError(f"SPICE answered for {len(found)} of {count} texts")
    values = [float("nan") if found[number] is None else float(found[number]) for number in range(count)]
    return [value if value == value else 0.0 for value in values]


def _entry(number: int, sample: Sample) -> dict[str, Any]:
    """Numbered, so that equal prompts stay apart."""
    references = [reference[:MAX_CHARACTERS] for reference in references_of(sample, "SPICE")]
    return {"image_id": number, "test": sample.text[:MAX_CHARACTERS], "refs": references}
