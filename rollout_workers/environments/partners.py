"""Who answers the model in a talk: itself, a model that never learns, or a class of the user's own."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from contracts.components import check_component, create, find
from contracts.errors import InputError
from contracts.settings import build

SELF, FROZEN = "self", "frozen"  # the engine that plays speaks for the first, too: no object is needed
PARTNERS = {
    SELF: "",
    FROZEN: "rollout_workers.environments.frozen_partner:FrozenPartner",
}
KEY, OPTIONS = "environment.partner", "environment.partner_options"


class Partner(Protocol):
    """One of one's own is a class; `environment.partner_options` are its constructor's arguments.

    Example: one that wants to know, asked for with `environment.partner=my_partner:Curious`.

        class Curious:
            def reply(self, history: list[str], seed: int) -> str:
                return f"Why do you say {history[-1].split()[0]} ?" if history[-1] else ""
    """

    def reply(self, history: list[str], seed: int) -> str:
        """The next utterance; "" ends the talk.

        Args:
            history: all utterances, the prompt's first and the model's last, without separators.
            seed: of this utterance: the same history and seed give the same answer.
        """
        ...


def check_partner(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what could never be made; nothing is loaded.

    Raises:
        InputError: unknown name or option, a class that does not import or lacks `reply`.
    """
    if name == SELF:
        if options:
            raise InputError(f"{OPTIONS}: got {dict(options)!r}; a partner that is the model itself has none")
        return
    found = find(KEY, name, PARTNERS)
    if name in PARTNERS:
        build(found, options, where=OPTIONS)
        return
    check_component(KEY, name, found, Partner)
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise InputError(f"{OPTIONS}: {found.__name__} does not take these options: {error}") from None


def make_partner(name: str, options: Mapping[str, Any], separator: str) -> Partner | None:
    """None where the model speaks to itself."""
    if name == SELF:
        return None
    if name in PARTNERS:
        made: Partner = build(find(KEY, name, PARTNERS), options, where=OPTIONS).load(separator)
        return made
    own: Partner = create(KEY, name, options, {}, Partner)
    return own


def heard_from(partner: Partner, name: str, history: Sequence[str], seed: int) -> str:
    """The partner's next utterance.

    Raises:
        InputError: it answered something else than a text.
    """
    utterance = partner.reply(list(history), seed)
    if not isinstance(utterance, str):
        raise InputError(
            f"{KEY}={name}: reply() returned {utterance!r:.80} ({type(utterance).__name__}); expected a text"
        )
    return utterance
