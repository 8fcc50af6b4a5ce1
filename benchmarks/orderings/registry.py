"""Registered orderings, read from registered.yaml: hypotheses, arms, seeds, measures and tests."""

import hashlib
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, model_validator

from contracts.errors import InputError
from contracts.settings import Integers, Settings, Strings, build

FILE = Path(__file__).with_name("registered.yaml")


class Arm(Settings):
    """One way to train: overrides of `whetstone train`, or a run of benchmarks.studies.offline or .games."""

    train: Strings = ()
    start: str = "warm"  # the model that `train` begins with: warm or untrained
    offline: str | None = None
    noisy: bool = False  # half of the data's rewards are shuffled among their rows
    games: str | None = None
    note: str = ""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(map(bool, (self.train, self.offline, self.games))) != 1:
            raise ValueError("expected train, offline or games: one of them")
        return self

    @property
    def digest(self) -> str:
        """Name the run, so that equal arms of two orderings run once."""
        settings = json.dumps(self.model_dump(exclude={"note"}), sort_keys=True)
        return hashlib.sha256(settings.encode()).hexdigest()[:12]


class Claim(Settings):
    """A hypothesis about two arms: the first is above the second, or level with it within a margin."""

    above: Strings = ()
    level: Strings = ()
    measure: str
    margin: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sorted(map(len, (self.above, self.level))) != [0, 2] or bool(self.level) != bool(self.margin):
            raise ValueError("expected above=[A, B], or level=[A, B] with a margin")
        return self

    @property
    def pair(self) -> tuple[str, str]:
        first, second = self.above or self.level
        return first, second

    @property
    def text(self) -> str:
        first, second = self.pair
        if self.above:
            return f"{first} above {second}"
        return f"{first} level with {second}, ± {self.margin:g}"


class Ordering(Settings):
    """One question, its arms and its claims."""

    asks: str
    known: str  # earlier pages' findings
    arms: dict[str, Arm]
    claims: list[Claim]

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for name in (name for claim in self.claims for name in claim.pair):
            if name not in self.arms:
                raise ValueError(f"{name} is no arm")
        return self


class Registry(Settings):
    """All orderings, in the order of their runs."""

    seeds: Integers
    shared: Strings  # overrides of every arm that trains
    orderings: dict[str, Ordering]


@cache
def read_registry() -> Registry:
    """Read the file; an arm's own list may hold lists (anchors), which are joined."""
    tree = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for ordering in tree["orderings"].values():
        for arm in ordering["arms"].values():
            if "train" in arm:
                parts = ([part] if isinstance(part, str) else part for part in arm["train"])
                arm["train"] = [text for part in parts for text in part]
    return build(Registry, tree, where=FILE.name)


def registration() -> str:
    """Return the commit that last changed the registrations.

    Raises:
        InputError: the file has uncommitted changes, so nothing is registered.
    """
    if _git("status", "--porcelain", "--", str(FILE)):
        raise InputError(f"{FILE.name} has changes: commit it, so that it is registered before it is run")
    return _git("log", "-n", "1", "--format=%h", "--", str(FILE))


def require_registered_before(commit: str, registered: str) -> None:
    """Check that a run's commit comes after the registrations'.

    Raises:
        InputError: the run's commit is older. A registration that changes after its runs proves nothing.
    """
    order = ("git", "merge-base", "--is-ancestor", registered, commit.removesuffix("-dirty"))
    if subprocess.run(order, cwd=FILE.parent, capture_output=True).returncode:
        raise InputError(
            f"a run of commit {commit} is no later than its registration ({registered}): remove "
            "benchmarks/out/orderings, and run the orderings again"
        )


def head() -> str:
    return _git("describe", "--always", "--dirty")


def _git(*words: str) -> str:
    git = subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=FILE.parent)
    return git.stdout.strip()
