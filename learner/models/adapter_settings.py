"""Settings of adapters: low-rank matrices that train beside a model's frozen weights."""

import importlib.util
import re
from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.errors import InputError
from contracts.settings import Settings, Strings

INSTALL = "pip install 'whetstone[adapters]'"
ROLE = re.compile(r"[\w-]{1,32}", re.ASCII)
PACKAGES = {"none": (), "lora": ("peft",), "qlora": ("peft", "bitsandbytes")}


class AdapterSettings(Settings):
    """Settings of LoRA (Hu et al. 2021, arXiv 2106.09685) and QLoRA (Dettmers et al. 2023, arXiv 2305.14314).

    QLoRA is LoRA on a base of 4 bits. The options have peft's names.
    """

    kind: Literal["none", "lora", "qlora"] = "none"  # none: the model's weights train
    path: str | None = None  # an adapter of model.path to train further; None: a new one
    r: int = Field(default=16, ge=1)  # rank of the matrices
    lora_alpha: int = Field(default=32, ge=1)  # the product of the matrices is scaled by lora_alpha / r
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)  # probability of dropping an input
    # all-linear: all layers except the head; a list: ends of names; a text: a regular expression over names
    target_modules: str | Strings = "all-linear"
    # How rollout workers get the adapter: merged into the weights, or beside them as a vLLM LoRA
    serve: Literal["merged", "adapter"] = "merged"

    # Names of roles with one adapter each over one frozen model; none: one adapter for all
    roles: Strings = ()

    @model_validator(mode="after")
    def _roles_are_served_by_name(self) -> Self:
        if odd := [name for name in self.roles if not ROLE.fullmatch(name)]:
            raise ValueError(
                f"roles={list(self.roles)}: {odd[0]!r:.80} is not a role name; expected 1 to 32 letters, "
                "digits, - or _"
            )
        if len(set(self.roles)) < len(self.roles):
            raise ValueError(f"roles={list(self.roles)}: expected each name once")
        if self.roles and (self.serve != "adapter" or self.path is not None):
            cause = f"serve={self.serve}" if self.path is None else f"path={self.path}"
            raise ValueError(
                f"roles={list(self.roles)} with {cause}: expected serve=adapter, by which workers have one "
                "model and an adapter for each role, and a model that is not an adapter itself"
            )
        return self

    @model_validator(mode="after")
    def _options_fit_the_kind(self) -> Self:
        options = {
            name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default
        }
        if self.kind == "none" and options:
            raise ValueError(
                f"{', '.join(sorted(options))} set, but kind=none has no adapter; expected kind=lora or qlora"
            )
        if self.kind == "qlora" and self.serve == "adapter":
            raise ValueError(
                "serve=adapter puts the adapter beside the weights of model.path, but with kind=qlora it "
                "trained beside their 4-bit form; expected serve=merged, or kind=lora"
            )
        return self

    @property
    def drops_out(self) -> bool:
        """Return whether updates use the adapter's dropout."""
        return self.trains and self.lora_dropout > 0

    @property
    def trains(self) -> bool:
        return self.kind != "none"

    def check_installed(self) -> None:
        """Check that the libraries of this kind of adapter are installed.

        Raises:
            InputError: peft or bitsandbytes is missing; the message says how to install it.
        """
        missing = [name for name in PACKAGES[self.kind] if importlib.util.find_spec(name) is None]
        if missing:
            raise InputError(
                f"model.adapter.kind={self.kind} needs {' and '.join(missing)}, which is not installed: "
                f"{INSTALL}"
            )
