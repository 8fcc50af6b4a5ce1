"""Settings under `data.`: the responses that a run trains on, as rows or as an annotation."""

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
from services.config.value_stage import ValueStage
from services.data.annotated.parts import MANIFEST
from services.data.annotated.row_columns import NAMED, ResponseData

RankBy = Literal["reward", "order"]


class DataSettings(ResponseData):
    """Responses, for algorithms that learn from data or as a share of each batch: rows, or an annotation.

    Example: `data=annotated` is `DataSettings(folder="annotated")`, and `data=pairs`, a folder with
    `train.jsonl`, is `DataSettings(files="pairs")`.
    """

    folder: str | None = None  # an annotation by `whetstone annotate`, instead of `files` or `path`
    share: float | None = Field(default=None, gt=0, lt=1)  # share of each batch that comes from the data
    num_epochs: int | None = Field(default=None, ge=1)  # passes over the data, instead of `iterations`
    # Annotated rewards with new weights; None: the weights of the annotation
    reward: tuple[Part, ...] | None = None
    num_responses: int = Field(default=2, ge=2)  # responses per prompt, for algorithms that compare them
    rank_by: RankBy = "reward"  # order: the data set's own order, the best response first
    # Evaluations in each pass over the data, instead of `evaluate_every`
    evaluations_per_epoch: int | None = Field(default=None, ge=1)
    # How to learn values: in a run on rows, or in `whetstone annotate experiment=…`. A run on an annotation
    # warns if its values differ
    value: ValueStage | None = None

    @field_validator("reward", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> tuple[Part, ...] | None:
        if value is None:
            return None
        rewards = parts(value, "data.reward")
        check_parts("reward", rewards)
        return rewards

    @model_validator(mode="before")
    @classmethod
    def _rows_or_annotation(cls, section: Any) -> Any:
        """Treat a file, or a folder without an annotation, as rows."""
        if not isinstance(section, Mapping) or not isinstance(folder := section.get("folder"), str):
            return section
        if section.get("files") or not holds_rows(folder):
            return section
        return {**{key: value for key, value in section.items() if key != "folder"}, "files": folder}

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
                "data.reward= gives an annotation's rewards new weights, but these are rows: "
                "score them with reward="
            )
        return self

    @property
    def has_rows(self) -> bool:
        """Tell whether the source is rows without an annotation."""
        return self.folder is None

    @property
    def annotation(self) -> Path:
        """Folder of the annotation."""
        assert self.folder is not None, "rows have no annotation yet"
        return Path(self.folder)

    @property
    def source(self) -> str:
        """Source in the words of the command line. Example: `data.files=pairs`"""
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
        """Leave out columns that were not set, so that a resumed run detects them again."""
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
    return not (path / MANIFEST).exists() and any(not file.name.startswith(".") for file in path.iterdir())
