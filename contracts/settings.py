"""The base class of all typed settings, and readable messages of validation errors."""

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from contracts.errors import InputError, did_you_mean, there_are
from contracts.secrets.secret_values import is_secret, remember_in


class Settings(BaseModel):
    """Frozen, strict settings: no unknown keys, no NaN or infinity, no silent conversions.

    1 passes for a float, "1" does not. A component's settings and the component are one class: its fields are
    its options, and their defaults are the published method's.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_what_nested_defaults_say(cls, data: Any) -> Any:
        """Apply options of a nested component to the default that this class gives, not to its own default.

        Example: GRPO puts KL into the loss, and `kl.coefficient=0.02` leaves it there.
        """
        if not isinstance(data, Mapping):
            return data
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {
            name: {**default.model_dump(exclude_unset=True), **value}
            if isinstance(value, Mapping) and isinstance(default := defaults.get(name), Settings)
            else value
            for name, value in data.items()
        }


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# YAML has lists, frozen settings hold tuples.
Strings = Annotated[tuple[str, ...], BeforeValidator(_list_to_tuple)]
Integers = Annotated[tuple[int, ...], BeforeValidator(_list_to_tuple)]

TYPES = frozenset({"bool", "int", "float", "str", "none"})

AnySettings = TypeVar("AnySettings", bound=BaseModel)


def build(
    kind: type[AnySettings], options: Mapping[str, Any], where: str, known: Sequence[str] = ()
) -> AnySettings:
    """Validate `options` as settings of the class `kind`.

    Args:
        known: options that other code reads; the error for a misspelt option suggests them.

    Raises:
        InputError: the message names each wrong key as `where.key`, what was got, and what was expected.
    """
    remember_in(options)
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        raise InputError(explain(error, kind, where, known)) from None


def with_options(settings: AnySettings, options: Mapping[str, Any]) -> AnySettings:
    """Return the settings with other values of some keys, which are not checked.

    Args:
        options: by key, such as `{"learner.token_budget": 4096}`.
    """
    for key, value in options.items():
        name, _, rest = key.partition(".")
        changed = with_options(getattr(settings, name), {rest: value}) if rest else value
        settings = settings.model_copy(update={name: changed})
    return settings


def explain(error: ValidationError, kind: type[BaseModel], where: str, known: Sequence[str] = ()) -> str:
    """Return one line for each mistake: `algorithm.clip_range: got -1; Input should be greater than 0`."""
    lines = []
    for mistake in error.errors():
        is_extra = mistake["type"] == "extra_forbidden"  # its key may be anything
        path = [str(part) for part in mistake["loc"] if is_extra or not _names_a_type(part)]
        key = ".".join([where, *path]) if where else ".".join(path)
        if is_extra:
            fields = [*_fields_at(kind, path[:-1]), *(known if len(path) == 1 else ())]
            meant = did_you_mean(path[-1], fields) if fields else ""
            lines.append(f"{key}: there is no such option{meant}")
        elif mistake["type"] == "missing":
            lines.append(f"{key}: is required, and was not given")
        else:
            expected = "" if is_secret(key) else _expected(mistake["type"], mistake["input"])
            if mistake["type"] == "model_type" and path and (fields := _fields_at(kind, path)):
                expected = f"expected {key}.OPTION=VALUE; {there_are(fields)}"
            message = expected or mistake["msg"].removeprefix("Value error, ")
            # A rule over several options says what it got; listing all of them would bury that.
            is_said = isinstance(mistake["input"], Mapping) or message.startswith("got ")
            got = "" if is_said or is_secret(key) else f"got {mistake['input']!r}; "
            lines.append((f"{key}: " if key else "") + got + message)
    return "\n".join(dict.fromkeys(lines))


def _expected(mistake: str, got: Any) -> str:
    """Return the form to write, if a list or a text was expected and a single value came; else "".

    >>> _expected("tuple_type", "answer"), _expected("int_type", "x")
    ('expected a list: [answer]', '')
    >>> print(_expected("string_type", 12))
    expected a text, on the command line in two kinds of quotes: '"12"'
    """
    if mistake in ("tuple_type", "list_type") and isinstance(got, str | int | float):
        return f"expected a list: [{got}]" if isinstance(got, str) else "expected a list"
    if mistake == "string_type" and isinstance(got, int | float):
        shown = got if type(got) is int else "…"  # 1.10 is read as 1.1
        return f"expected a text, on the command line in two kinds of quotes: '\"{shown}\"'"
    return ""


def _names_a_type(part: int | str) -> bool:
    """Return whether the part is a type of a union: Pydantic adds these to the path, as in `stop.str`."""
    return isinstance(part, str) and (part in TYPES or part.startswith("constrained-") or "[" in part)


def _fields_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    """Return the field names of the settings class at `path`, or [] if no settings class is there."""
    for part in path:
        field = kind.model_fields.get(part)
        annotation = field.annotation if field else None
        kinds = [one for one in get_args(annotation) or (annotation,) if one is not NoneType]
        if len(kinds) != 1 or not (isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel)):
            return []
        kind = kinds[0]
    return list(kind.model_fields)
