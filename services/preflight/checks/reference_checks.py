"""Check the model of `model.reference.path`, with which the KL compares: its kind, vocabulary and size."""

from typing import Any

from contracts.errors import InputError
from learner.settings import ModelSettings
from services.models.files import ModelFiles, read_model
from services.models.tokenizer import load_tokenizer


def check_reference(asked: ModelSettings, model: ModelFiles) -> ModelFiles | None:
    """Check that the reference reads the trained model's tokens; return its files, None where it is a copy.

    Raises:
        InputError: its files are wrong, it is of another kind, or it has another vocabulary.
    """
    settings = of_reference(asked)
    if settings is None:
        return None
    reference = read_model(settings, key="model.reference.path")
    where = f"model.reference.path={settings.path}"
    kinds = {True: "an encoder-decoder", False: "a causal model"}
    if reference.is_encoder_decoder != model.is_encoder_decoder:
        raise InputError(
            f"{where}: got {kinds[reference.is_encoder_decoder]}; expected "
            f"{kinds[model.is_encoder_decoder]}, as model.path={asked.path} is"
        )
    got, expected = (load_tokenizer(each).get_vocab() for each in (settings, asked))
    if got != expected:
        raise InputError(
            f"{where} has another vocabulary than model.path={asked.path}: {difference(got, expected)}. "
            f"Expected a model with the same tokenizer, such as a larger one of its family"
        )
    return reference


def least_room(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two rooms for a prompt; None: no limit."""
    return min((room for room in (one, other) if room is not None), default=None)


def difference(got: dict[str, int], expected: dict[str, int]) -> str:
    """Return how two vocabularies differ, by their sizes and the first token.

    >>> difference({"a": 0, "b": 1}, {"a": 0, "c": 1, "d": 2})
    "got 2 tokens, expected 3; token 1 is 'b', expected 'c'"
    """
    found, wanted = ({number: token for token, number in each.items()} for each in (got, expected))
    first = min(number for number in found.keys() | wanted.keys() if found.get(number) != wanted.get(number))
    return (
        f"got {len(got)} tokens, expected {len(expected)}; token {first} is {_shown(found.get(first))}, "
        f"expected {_shown(wanted.get(first))}"
    )


def _shown(token: Any) -> str:
    return "missing" if token is None else repr(token)


def num_parameters_of_reference(asked: ModelSettings) -> int | None:
    """Return the size of `model.reference.path`; None where there is none, or its weights are on the hub."""
    settings = of_reference(asked)
    return None if settings is None else read_model(settings, key="model.reference.path").num_parameters


def of_reference(asked: ModelSettings) -> ModelSettings | None:
    """Return the settings of the reference as a model of its own; None: it is a copy of the trained one."""
    if asked.reference.path is None:
        return None
    return ModelSettings(path=asked.reference.path, revision=asked.reference.revision)
