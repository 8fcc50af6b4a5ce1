"""Settings of adapters: matrices of low rank that train beside a model's frozen weights."""

import importlib.util
from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.errors import InputError
from contracts.settings import Settings, Strings

INSTALL = "pip install 'whetstone[adapters]'"
PACKAGES = {"none": (), "lora": ("peft",), "qlora": ("peft", "bitsandbytes")}


class AdapterSettings(Settings):
    """Settings of LoRA (Hu et al. 2021, arXiv 2106.09685) and QLoRA (Dettmers et al. 2023, arXiv 2305.14314).

    QLoRA is LoRA on a base of 4 bits. The options have peft's names.
    """

    kind: Literal["none", "lora", "qlora"] = "none"  # none: the model's own weights train
    path: str | None = None  # of an adapter of model.path that is trained further; None: a new one
    r: int = Field(default=16, ge=1)  # the matrices' rank
    lora_alpha: int = Field(default=32, ge=1)  # the matrices' product is scaled by lora_alpha / r
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)  # probability that an input is dropped
    # all-linear: all layers but the head; a list: ends of names; a text: a regular expression over names
    target_modules: str | Strings = "all-linear"
    # How rollout workers get the adapter: merged into the weights, or beside them as a LoRA of vLLM's
    serve: Literal["merged", "adapter"] = "merged"

    @model_validator(mode="after")
    def _options_fit_the_kind(self) -> Self:
        own = {
            name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default
        }
        if self.kind == "none" and own:
            raise ValueError(
                f"{', '.join(sorted(own))} set, and kind=none has no adapter; expected kind=lora or qlora"
            )
        if self.kind == "qlora" and self.serve == "adapter":
            raise ValueError(
                "serve=adapter puts the adapter beside the weights of model.path, and with kind=qlora it is "
                "trained beside their 4-bit form; expected serve=merged, or kind=lora"
            )
        return self

    @property
    def drops_out(self) -> bool:
        """Return whether updates run with the adapter's own dropout."""
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
