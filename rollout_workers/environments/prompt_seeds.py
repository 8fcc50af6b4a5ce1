"""Seed of a prompt: by it all rollouts of a group play one episode, and held-out episodes stay held out."""

import hashlib

from contracts.errors import InputError
from contracts.rollout import Prompt


def seed_of(prompt: Prompt) -> int:
    """Return `meta["seed"]`, as task=episodes sets it, or a seed from the prompt's id.

    >>> seed_of(Prompt("p/0", "", meta={"seed": 7}))
    7
    >>> seed_of(Prompt("p/0", "")) == seed_of(Prompt("p/0", "")) != seed_of(Prompt("p/1", ""))
    True

    Raises:
        InputError: `meta["seed"]` is no seed.
    """
    if "seed" not in prompt.meta:
        return (
            int.from_bytes(hashlib.sha256(prompt.id.encode()).digest()[:4]) >> 1
        )  # many environments take no more bits
    own = prompt.meta["seed"]
    if not isinstance(own, int) or isinstance(own, bool) or own < 0:
        raise InputError(f"prompt {prompt.id}: its seed is {own!r}; expected a whole number from 0 on")
    return own
