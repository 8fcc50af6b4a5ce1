"""Partners of the model in a dialogue: its copy, a model that never learns, or a user's class."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from contracts.components import check_component, create, find
from contracts.errors import InputError
from contracts.settings import build

SELF, FROZEN = "self", "frozen"  # `self` needs no object, because the playing engine speaks for it
PARTNERS = {
    SELF: "",
    FROZEN: "rollout_workers.environments.frozen_partner:FrozenPartner",
}
KEY, OPTIONS = "environment.partner", "environment.partner_options"


class Partner(Protocol):
    """Partner in a dialogue; `environment.partner_options` are its constructor's arguments.

    Example: a user's partner, chosen by `environment.partner=my_partner:Curious`.

        class Curious:
            def reply(self, history: list[str], seed: int) -> str:
                return f"Why do you say {history[-1].split()[0]} ?" if history[-1] else ""
    """

    def reply(self, history: list[str], seed: int) -> str:
        """Return the next utterance; "" ends the dialogue.

        Args:
            history: all utterances, the prompt's first and the model's last, without separators.
            seed: seed of this utterance; the same history and seed give the same answer.
        """
        ...


def check_partner(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a partner that can't be made; load nothing.

    Raises:
        InputError: the name or an option is unknown, or the class does not import or lacks `reply`.
    """
    if name == SELF:
        if options:
            raise InputError(f"{OPTIONS}: got {dict(options)!r}; the model's copy as partner has none")
        return
    kind = find(KEY, name, PARTNERS)
    if name in PARTNERS:
        build(kind, options, where=OPTIONS)
        return
    check_component(KEY, name, kind, Partner)
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise InputError(f"{OPTIONS}: {kind.__name__} does not take these options: {error}") from None


def make_partner(
    name: str, options: Mapping[str, Any], separator: str, by_template: bool = False
) -> Partner | None:
    """Make the partner; None if the model speaks to its copy.

    Args:
        by_template: whether the model reads the dialogue by a chat template.
    """
    if name == SELF:
        return None
    if name in PARTNERS:
        made: Partner = build(find(KEY, name, PARTNERS), options, where=OPTIONS).load(separator, by_template)
        return made
    partner: Partner = create(KEY, name, options, {}, Partner)
    return partner


def heard_from(partner: Partner, name: str, history: Sequence[str], seed: int) -> str:
    """Return the partner's next utterance.

    Raises:
        InputError: the partner returned something other than a text.
    """
    utterance = partner.reply(list(history), seed)
    if not isinstance(utterance, str):
        raise InputError(
            f"{KEY}={name}: reply() returned {utterance!r:.80} ({type(utterance).__name__}); expected a text"
        )
    return utterance
