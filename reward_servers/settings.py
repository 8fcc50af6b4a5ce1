"""Settings of rewards and metrics: their parts, and each server's replicas, queues and time-outs."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self
from unicodedata import normalize

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from contracts.errors import InputError, did_you_mean
from contracts.objects import own_name
from contracts.processes.python_files import is_file
from contracts.settings import Settings, build
from reward_servers.chat_models.backoff import LONGEST_WAIT_S


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Bound = float | None
# The lowest and the highest value, either of which may be open: [0, 1], [null, 5].
Bounds = Annotated[
    tuple[Bound, Bound],
    BeforeValidator(_list_to_tuple),
    PlainSerializer(list, return_type=list),
]


class Standardize(Settings):
    """Standardization as (value - mean) / std, with two fixed numbers that were measured beforehand.

    Running numbers would depend on the order of the answers, be lost with their process, and make the
    rewards of two iterations incomparable.
    """

    mean: float  # mean of the raw reward, measured beforehand
    std: float = Field(gt=0)  # standard deviation of the raw reward, measured beforehand


def label_of(part: Mapping[str, Any]) -> str:
    """Return a part's label: that given, else its name without the address, composed as keys are.

    >>> label_of({"name": "my_rewards.py:brevity"}), label_of({"name": "rouge", "label": "mine"})
    ('brevity', 'mine')
    """
    return normalize("NFC", str(part.get("label") or own_name(str(part.get("name")))))


class Part(Settings):
    """One reward of a weighted sum, or one metric.

    Example: `{name: rouge, weight: 0.5, rouge_type: rouge1}`, or the name alone: `rouge`.

    Any key that is no field here is an option of the component. The label tells two parts of the same
    component apart; by default it is the component's name, or a user's class name.

    `reward_servers.shaping` standardises a reward's value, clips it, compares it with the threshold and
    weights it, in this order.
    """

    name: str = Field(min_length=1)  # built-in, or package.module:Class
    weight: float = 1.0  # factor in the weighted sum
    label: str = Field(default="", pattern=r"^[^\W\d_][\w-]*$")  # name in logs; default: `name`
    standardize: Standardize | None = None  # {mean: …, std: …}: subtract mean, divide by std
    clip: Bounds | None = None  # [lowest, highest]; null leaves a side open
    threshold: float | None = None  # 1 from here on, 0 below
    options: dict[str, Any] = Field(default_factory=dict)  # the component's own; flat keys join them

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        fields = {key: value for key, value in data.items() if key in cls.model_fields}
        options = {key: value for key, value in data.items() if key not in cls.model_fields}
        if isinstance(name := fields.get("name"), str) and ":" not in name and is_file(name):
            raise ValueError(f"got {name}; expected a function or class in it: {name}:NAME")
        if isinstance(fields.get("name"), str) and isinstance(fields.get("label"), str | None):
            fields["label"] = label_of(fields)
        nested = fields.get("options", {})
        if not isinstance(nested, Mapping):
            raise ValueError(f"options: got {nested!r}; expected a mapping of the component's own options")
        if taken := cls.model_fields.keys() & nested.keys():
            raise ValueError(
                f"options: {', '.join(sorted(taken))} is an option of the weighted sum; give a component's "
                "option another name"
            )
        return fields | {"options": {**nested, **options}}

    @field_validator("standardize", mode="before")
    @classmethod
    def _both_numbers(cls, value: Any) -> Any:
        if value is None or isinstance(value, Mapping | Standardize):
            return value
        raise ValueError(
            "expected {mean: …, std: …}; `whetstone score NAME --reward --predictions FILE` prints both "
            "for texts of yours"
        )

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        low, high = self.clip or (None, None)
        if low is not None and high is not None and low >= high:
            raise ValueError(f"clip=[{low:g}, {high:g}]: expected the lower bound first, and a higher one")
        if self.threshold is not None and (
            (low is not None and self.threshold <= low) or (high is not None and self.threshold > high)
        ):
            raise ValueError(
                f"threshold={self.threshold:g} lies outside of clip={list(self.clip or ())}, so that every "
                "value is on one side of it"
            )
        return self

    @property
    def shaping(self) -> tuple[str, ...]:
        """The options of the weighted sum that were given: ("weight", "clip")."""
        fields = ("weight", "standardize", "clip", "threshold")
        return tuple(name for name in fields if getattr(self, name) != type(self).model_fields[name].default)


def parts(value: Any, where: str = "reward") -> tuple[Part, ...]:
    """Return the parts of a configuration: a name, a mapping, or a list of those; None gives ().

    >>> [(part.label, part.weight) for part in parts(["length", {"name": "rouge", "weight": 0.5}])]
    [('length', 1.0), ('rouge', 0.5)]

    Raises:
        InputError: an entry is no part, or two parts have one label.
    """
    entries = [] if value is None else value if isinstance(value, list | tuple) else [value]
    all_parts = tuple(_part(entry, where) for entry in entries)
    for index, part in enumerate(all_parts):
        for earlier in all_parts[:index]:
            if part.label == earlier.label:
                raise InputError(
                    f"{where}: {earlier.name} and {part.name} are both labelled '{part.label}'; "
                    f"give one of them another label: {{name: {part.name}, label: {part.label}2}}"
                )
    return all_parts


def _part(entry: Any, where: str) -> Part:
    if isinstance(entry, Part):
        return entry
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: got {entry!r}; expected a name, or a mapping with a name and options")
    return build(Part, entry, where)


class Sandbox(Settings):
    """Limits of a reward that runs in its own process beside its replica."""

    memory_gib: float | None = Field(default=4.0, gt=0)  # limit of address space, which exceeds real memory
    seconds: float = Field(default=20.0, gt=0)  # limit of a batch; if it fails, its texts share it once more
    start_seconds: float = Field(default=120.0, gt=0)  # limit for loading the reward, in seconds
    file_mib: float = Field(default=64.0, gt=0)  # the largest file that the reward may write


class ServerSettings(Settings):
    """The server of one reward or metric: a fixed number of `replicas`, or bounds for scaling itself."""

    replicas: int | None = Field(default=None, ge=1)  # fixed number; None: between min and max
    min_replicas: int = Field(default=1, ge=1)  # lower bound, when scaling
    max_replicas: int = Field(default=1, ge=1)  # upper bound, when scaling
    target_ongoing_requests: float = Field(default=2.0, gt=0)  # calls a replica has at a time, when scaling
    max_ongoing_requests: int = Field(default=16, ge=1)  # calls a replica takes on; the others queue
    max_queued_requests: int = Field(default=-1, ge=-1)  # calls that may queue; -1: any number
    batch_size: int = Field(default=64, ge=1)  # samples that a grader sees at once
    cache_size: int = Field(default=4096, ge=0)  # answers that a replica of a reward caches; 0: none
    # deadline in seconds of a batch, a whole group, or a coroutine's call, without the queue before it
    timeout_s: float = Field(default=60.0, gt=0)
    concurrency: int = Field(default=16, ge=1)  # calls of a coroutine at a time, in each replica
    rate: float | None = Field(default=None, gt=0)  # calls of a coroutine per second, in all replicas
    retries: int = Field(default=4, ge=0)  # repeats of a coroutine's call that raises or exceeds timeout_s
    num_cpus: float = Field(default=0.0, ge=0)  # reserved for each replica; 0 fits onto any laptop
    num_gpus: float = Field(default=0.0, ge=0)  # reserved for each replica; may be a share
    sandbox: Sandbox | None = None  # run the reward in a process of its own, with limits; {}: the usual ones

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.replicas is not None and (self.min_replicas, self.max_replicas) != (1, 1):
            raise ValueError(
                f"replicas={self.replicas} is a fixed number, but min_replicas={self.min_replicas}, "
                f"max_replicas={self.max_replicas} ask for scaling; give one or the other"
            )
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} is above max_replicas={self.max_replicas}; "
                "raise max_replicas"
            )
        if self.max_replicas > self.min_replicas and self.target_ongoing_requests > self.max_ongoing_requests:
            raise ValueError(
                f"target_ongoing_requests={self.target_ongoing_requests:g} is above "
                f"max_ongoing_requests={self.max_ongoing_requests}, so it would never scale up"
            )
        if self.sandbox is not None and 2 * self.sandbox.seconds >= self.timeout_s:
            raise ValueError(
                f"sandbox.seconds={self.sandbox.seconds:g} has to be less than half of "
                f"timeout_s={self.timeout_s:g}, or the call times out before the hanging text is found"
            )
        return self

    @property
    def most_replicas(self) -> int:
        return self.replicas or self.max_replicas

    def over(self, default: "ServerSettings") -> "ServerSettings":
        """Return these settings, with the default's values for settings that were not given.

        A fixed number of replicas overrides the default's bounds, and the other way round.
        """
        overrides = self.model_dump(include=self.model_fields_set)
        base = default.model_dump(include=default.model_fields_set)
        scaling = {"replicas", "min_replicas", "max_replicas"}
        if scaling & overrides.keys():
            base = {key: value for key, value in base.items() if key not in scaling}
        return ServerSettings(**{**base, **overrides})


class RewardServersSettings(Settings):
    """Settings of all servers: shared ones, a default for each server, and an entry for each label.

    Example: `{"default": {"timeout_s": 30}, "rouge": {"replicas": 2}}`. An entry holds for the reward
    and for the metric of that label.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ServerSettings] = Field(init=False)

    http_host: str = "127.0.0.1"  # address of `whetstone serve`
    http_port: int = Field(default=8000, ge=1, le=65535)  # port of `whetstone serve`
    start_timeout_s: float = Field(default=300.0, gt=0)  # seconds until every server is up with its models
    retries: int = Field(default=2, ge=0)  # how often a call is repeated whose replica died or gave no answer
    max_failures: int = Field(default=10, ge=0)  # samples without a score before a run stops
    default: ServerSettings = ServerSettings()

    @model_validator(mode="before")
    @classmethod
    def _refuse_stray_values(cls, data: Any) -> Any:
        # An unknown key is a label, but one with a plain value is a mistyped option.
        for key, value in data.items() if isinstance(data, Mapping) else ():
            if key in cls.model_fields or isinstance(value, ServerSettings):
                continue
            if not isinstance(value, Mapping):
                raise InputError(
                    f"reward_servers.{key}: there is no such option{did_you_mean(key, cls.model_fields)}"
                )
            for option in value.keys() - ServerSettings.model_fields.keys():
                near = did_you_mean(str(option), ServerSettings.model_fields)
                raise InputError(f"reward_servers.{key}.{option}: there is no such option{near}")
        return data

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Only the given options of an entry are written: read back, it still leaves the rest to the default.
        entries = self.__pydantic_extra__.items()
        return dump(self) | {label: entry.model_dump(exclude_unset=True) for label, entry in entries}

    def check_labels(self, labels: Iterable[str]) -> None:
        """Refuse entries for servers that do not exist, and labels that hide an option.

        Raises:
            InputError: names the nearest label.
        """
        known = set(labels)
        for label in sorted(known & type(self).model_fields.keys()):
            raise InputError(f"label '{label}' is an option of reward_servers; choose another label")
        for label in self.__pydantic_extra__:
            if label not in known:
                raise InputError(
                    f"reward_servers.{label}: no reward or metric has this label{did_you_mean(label, known)}"
                )

    def patience_s(self, labels: Iterable[str]) -> float:
        """Return the seconds to wait for any text's score, more than all of the client's deadlines.

        A coroutine's text may take all its attempts, with the longest pauses between them.
        """
        servers = [self.for_label(label) for label in labels]
        calls = [(self.retries + 2) * server.timeout_s for server in servers]
        calls += [(server.retries + 1) * (server.timeout_s + LONGEST_WAIT_S) for server in servers]
        return max(calls, default=0.0) + 60.0

    def reserved_gpus(self, parts: Iterable[Part]) -> tuple[tuple[float, int], ...]:
        """Return (GPUs of a replica, number of replicas at most) of each part that reserves any."""
        servers = [self.for_label(part.label) for part in parts]
        return tuple((server.num_gpus, server.most_replicas) for server in servers if server.num_gpus)

    def for_label(self, label: str) -> ServerSettings:
        entry = self.__pydantic_extra__.get(label)
        return entry.over(self.default) if entry else self.default
