"""Errors that a call raises: InputError for what the caller can fix, RunError for everything else."""

from typing import TYPE_CHECKING

from whetstone.own_place import are_names_ours

if TYPE_CHECKING or are_names_ours():
    from contracts.errors import InputError, RunError
else:  # the caller's project has a package `contracts`, so ours can't be imported beside it

    class InputError(Exception):
        """A mistake in the user's input; the message says what was got, where, and what to do."""

    class RunError(Exception):
        """A fault while running that the user's input does not explain."""


__all__ = ["InputError", "RunError"]
