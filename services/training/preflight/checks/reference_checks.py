"""Check the kind, vocabulary and size of the model at `model.reference.path`, used for the KL."""

from typing import Any

from contracts.errors import InputError
from learner.settings import ModelSettings
from services.models.files import ModelFiles, read_model
from services.models.tokenizer import load_tokenizer


def check_reference(trained: ModelSettings, model: ModelFiles) -> ModelFiles | None:
    """Check that the reference reads the trained model's tokens; return its files, or None if it is a copy.

    Raises:
        InputError: the reference's files are wrong, or its kind or vocabulary is not the trained model's.
    """
    settings = of_reference(trained)
    if settings is None:
        return None
    reference = read_model(settings, key="model.reference.path")
    where = f"model.reference.path={settings.path}"
    kinds = {True: "an encoder-decoder", False: "a causal model"}
    if reference.is_encoder_decoder != model.is_encoder_decoder:
        raise InputError(
            f"{where}: got {kinds[reference.is_encoder_decoder]}; expected "
            f"{kinds[model.is_encoder_decoder]}, as model.path={trained.path} is"
        )
    got, expected = (load_tokenizer(model_settings).get_vocab() for model_settings in (settings, trained))
    if got != expected:
        raise InputError(
            f"{where} has another vocabulary than model.path={trained.path}: {difference(got, expected)}. "
            f"Expected a model with the same tokenizer, such as a larger one of its family"
        )
    return reference


def least_room(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two limits on a prompt; None: no limit."""
    return min((room for room in (one, other) if room is not None), default=None)


def difference(got: dict[str, int], expected: dict[str, int]) -> str:
    """Describe how two vocabularies differ, by their sizes and the first different token.

    >>> difference({"a": 0, "b": 1}, {"a": 0, "c": 1, "d": 2})
    "got 2 tokens, expected 3; token 1 is 'b', expected 'c'"
    """
    actual, wanted = (
        {number: token for token, number in vocabulary.items()} for vocabulary in (got, expected)
    )
    first = min(
        number for number in actual.keys() | wanted.keys() if actual.get(number) != wanted.get(number)
    )
    return (
        f"got {len(got)} tokens, expected {len(expected)}; token {first} is {_shown(actual.get(first))}, "
        f"expected {_shown(wanted.get(first))}"
    )


def _shown(token: Any) -> str:
    return "missing" if token is None else repr(token)


def num_parameters_of_reference(trained: ModelSettings) -> int | None:
    """Return the size of `model.reference.path`; None if it is not set, or its weights are on the hub."""
    settings = of_reference(trained)
    return None if settings is None else read_model(settings, key="model.reference.path").num_parameters


def of_reference(trained: ModelSettings) -> ModelSettings | None:
    """Return the reference's settings as a separate model; None if it is a copy of the trained model."""
    if trained.reference.path is None:
        return None
    return ModelSettings(path=trained.reference.path, revision=trained.reference.revision)
