"""Options that several commands share: lists, least numbers, and the address that a server listens on."""

import argparse
from typing import Any

from contracts.errors import InputError
from contracts.network.access import checked, token_of


def at_least(least: int) -> Any:
    """Return a type for argparse: an integer not below `least`."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text}; expected {least} or more")
        return int(text)

    return integer


def names_in(text: str) -> list[str]:
    """Return the names in a list with commas.

    >>> names_in(" ppo,, nlpo ")
    ['ppo', 'nlpo']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds_in(text: str) -> list[int]:
    """Return the numbers of `--seeds`.

    Raises:
        InputError: the list is empty, or an entry is not a whole number.
    """
    try:
        return [int(seed) for seed in names_in(text) or [""]]
    except ValueError:
        raise InputError(f"--seeds {text}: expected whole numbers, such as 0,1,2") from None


def add_address(parser: argparse._ActionsContainer, port: int) -> None:
    """Add --host, --port and --token."""
    parser.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1, this machine only)")
    help_of_port = f"(default: {port}; 0: any free one)"
    parser.add_argument("--port", type=at_least(0), default=port, metavar="N", help=help_of_port)
    parser.add_argument("--token", metavar="TEXT", help="callers need it; better set it in WHETSTONE_TOKEN")


def token_in(arguments: argparse.Namespace) -> str | None:
    """Return the token of the command line or of the environment, or None.

    Raises:
        InputError: the token is too short, or its file can't be read.
    """
    return checked(arguments.token, "--token") if arguments.token else token_of()
