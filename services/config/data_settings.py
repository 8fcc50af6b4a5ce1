"""Settings under `data.`: the responses that a run trains on, annotated or as rows, and how much of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from reward_servers.part_checks import check_parts
from reward_servers.settings import Part, parts
from services.annotated.parts import MANIFEST
from services.annotated.row_columns import NAMED, ResponseData
from services.config.value_stage import ValueStage

RankBy = Literal["reward", "order"]


class DataSettings(ResponseData):
    """Responses, for algorithms that learn from data or as a share of each batch: rows, or an annotation.

    Example: `data=annotated` is `DataSettings(folder="annotated")`, and `data=pairs`, a folder with
    `train.jsonl`, is `DataSettings(files="pairs")`.
    """

    folder: str | None = None  # that `whetstone annotate` wrote, in place of `files` or `path`
    share: float | None = Field(default=None, gt=0, lt=1)  # share of each batch that comes from the data
    num_epochs: int | None = Field(default=None, ge=1)  # passes over the data, in place of `iterations`
    # Annotated rewards with new weights; None: the weights of the annotation
    reward: tuple[Part, ...] | None = None
    num_responses: int = Field(default=2, ge=2)  # responses per prompt, for algorithms that compare them
    rank_by: RankBy = "reward"  # order: the data set's own order, the best response first
    # Evaluations in each pass over the data, in place of `evaluate_every`
    evaluations_per_epoch: int | None = Field(default=None, ge=1)
    # How values are learned: by a run from rows, or by `whetstone annotate experiment=…`. A run on an
    # annotation warns where its values differ
    value: ValueStage | None = None

    @field_validator("reward", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> tuple[Part, ...] | None:
        if value is None:
            return None
        found = parts(value, "data.reward")
        check_parts("reward", found)
        return found

    @model_validator(mode="before")
    @classmethod
    def _rows_or_annotation(cls, given: Any) -> Any:
        """Take a folder without an annotation, or a file, as rows."""
        if not isinstance(given, Mapping) or not isinstance(folder := given.get("folder"), str):
            return given
        if given.get("files") or not holds_rows(folder):
            return given
        return {**{key: value for key, value in given.items() if key != "folder"}, "files": folder}

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = {"folder": self.folder, "files": self.files, "path": self.path}
        named = [key for key, value in sources.items() if value]
        if len(named) != 1:
            got = " and ".join(f"data.{key}" for key in named) or "none of them"
            raise ValueError(
                f"expected data=FOLDER, data.files=FOLDER or FILE, or data.path=HUB_NAME: got {got}"
            )
        if self.has_rows and self.reward is not None:
            raise ValueError(
                "data.reward= gives rewards of an annotation new weights, and these are rows: "
                "reward= scores them"
            )
        return self

    @property
    def has_rows(self) -> bool:
        """Tell whether it names rows, which nobody has annotated."""
        return self.folder is None

    @property
    def annotation(self) -> Path:
        """The folder of the annotation that it names."""
        assert self.folder is not None, "rows have no annotation yet"
        return Path(self.folder)

    @property
    def source(self) -> str:
        """The source in the words of the command line. Example: `data.files=pairs`"""
        if self.folder is not None:
            return f"data={self.folder}"
        return f"data.path={self.path}" if self.path else f"data.files={self.files}"

    @model_validator(mode="after")
    def _iterations_say_when_it_ends(self) -> Self:
        if self.share is not None and self.num_epochs is not None:
            raise ValueError(
                f"got share={self.share:g} and num_epochs={self.num_epochs}: with share=, iterations= sets "
                "the length of a run; leave num_epochs out"
            )
        if self.evaluations_per_epoch is not None and self.num_epochs is None:
            raise ValueError(
                f"got evaluations_per_epoch={self.evaluations_per_epoch} without num_epochs: expected both, "
                "or evaluate_every= in iterations"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_columns_nobody_named(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out columns that were not named, so that a run's configuration finds the same ones again."""
        plain: dict[str, Any] = serialize(self)
        return {
            key: value for key, value in plain.items() if key not in NAMED or key in self.model_fields_set
        }

    @field_serializer("reward")
    def _flat(self, value: tuple[Part, ...] | None) -> list[dict[str, Any]] | None:
        if value is None:
            return None
        return [{**part.model_dump(mode="json", exclude={"options"}), **part.options} for part in value]


def holds_rows(place: str) -> bool:
    """Tell whether a path is a file, or a folder with other files than an annotation's."""
    path = Path(place)
    if not path.is_dir():
        return path.is_file()
    return not (path / MANIFEST).exists() and any(not each.name.startswith(".") for each in path.iterdir())
