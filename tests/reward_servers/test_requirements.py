"""Requirements of some graders: refused, listed, diagnosed with the command that mends it; loaded once."""

import subprocess
import sys
from typing import ClassVar

import pytest

from contracts.errors import InputError
from contracts.scores import Sample
from contracts.settings import Settings
from reward_servers import requirements
from reward_servers.part_checks import check_at_hand, is_ready
from reward_servers.requirements import Requirement
from reward_servers.server import RewardServer
from reward_servers.settings import parts
from services.commands import listing
from services.training.preflight import examination

HERE = f"{__name__}:Graceful"


class Graceful(Settings):
    """Counts what is done with it."""

    requires: ClassVar[tuple[str, ...]] = ("grace",)
    done: ClassVar[list[str]] = []

    file: str = "there"

    def check(self) -> None:
        self.done.append("check")
        if self.file == "nowhere":
            raise InputError("file=nowhere can't be read")

    def load(self) -> None:
        self.done.append("load")

    def score(self, samples: list[Sample]) -> list[float]:
        self.done.append("score")
        return [1.0 for _ in samples]


@pytest.fixture(params=[True, False], ids=["there", "not-there"])
def grace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A requirement that is there or not, which the built-in reward `length` has."""
    needed = Requirement("grace", "a kind word", lambda: request.param, "pip install grace")
    monkeypatch.setitem(requirements.REQUIREMENTS, "grace", needed)
    monkeypatch.setattr("reward_servers.graders.length.Length.requires", ("grace",), raising=False)
    Graceful.done.clear()
    return bool(request.param)


def test_it_is_refused_before_the_run_with_the_remedy(grace: bool) -> None:
    if grace:
        check_at_hand("reward", parts("length"))
        return
    with pytest.raises(
        InputError, match=r"reward=length needs .*a kind word \(grace\).*\n  pip install grace"
    ):
        check_at_hand("reward", parts("length"))


def test_lists_and_the_doctor_show_it(grace: bool, capsys: pytest.CaptureFixture[str]) -> None:
    (length,) = [block for block in listing.blocks("rewards") if block["name"] == "length"]
    assert length["requires"] == ["grace"]
    assert length["missing"] == ({} if grace else {"grace": "pip install grace"})
    (finding,) = [finding for finding in examination.graders() if finding.topic == "grace"]
    assert finding.status == ("ok" if grace else "warning")  # a run that does not name it goes without
    assert finding.remedy == ("" if grace else "pip install grace") and "length" in finding.found
    listing.run(["rewards"])
    text = capsys.readouterr().out
    assert ("needs grace: is there" in text) == grace
    assert ("needs grace: missing; pip install grace" in text) == (not grace)
    assert is_ready("reward", "length") == grace


@pytest.mark.parametrize("grace", [True], indirect=True)
def test_checking_loads_nothing_and_serving_loads_once_before_the_first_sample(grace: bool) -> None:
    (part,) = parts(HERE)
    check_at_hand("reward", [part])
    assert Graceful.done == ["check"]
    server = RewardServer(part)
    assert Graceful.done == ["check", "load"]
    assert server.score([Sample("a"), Sample("b")]) == [(1.0, None), (1.0, None)]
    assert Graceful.done == ["check", "load", "score"]
    with pytest.raises(InputError, match=rf"^reward={HERE}: file=nowhere can't be read$"):
        check_at_hand("reward", parts([{"name": HERE, "file": "nowhere"}]))


def test_looking_at_every_grader_imports_nothing_heavy() -> None:
    code = (
        "import sys; from services.commands import listing; "
        "from services.training.preflight import examination; "
        "examination.graders(); "
        "[listing.blocks(kind) for kind in ('rewards', 'metrics')]; "
        "print([name for name in ('torch', 'transformers', 'nltk', 'bert_score', 'pandas', 'sacrebleu') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_asks_for_options_models_or_downloads_is_not_served_unasked() -> None:
    assert is_ready("reward", "rouge") and is_ready("metric", "cider")
    for kind, name in (("reward", "cider"), ("reward", "bert_score"), ("metric", "summaCZS")):
        assert not is_ready(kind, name)
