"""Access to an HTTP service: from this machine alone, or with a token."""

import contextlib
import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import InputError
from contracts.secrets.secret_values import remember_secret

TOKEN, TOKEN_FILE = "WHETSTONE_TOKEN", "WHETSTONE_TOKEN_FILE"
OTHERS_MAY = 0o077
LEAST_TOKEN = 16  # characters; a shorter token can be guessed


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach this address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_of(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token of WHETSTONE_TOKEN, or of the file that WHETSTONE_TOKEN_FILE names, or None.

    Raises:
        InputError: the file can't be read, or the token is too short or doesn't fit into a header.
    """
    where, token = TOKEN, environment.get(TOKEN)
    if not token and (file := environment.get(TOKEN_FILE)):
        where = f"{TOKEN_FILE}={file}"
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where}: the token can't be read: {error}") from None
        if not token:
            raise InputError(f"{where}: the file is empty; expected a token")
    return checked(token, where) if token else None


def checked(token: str, where: str) -> str:
    """Return the token if it is valid.

    Raises:
        InputError: the token is too short, or doesn't fit into a header; the message begins with `where`.
    """
    remember_secret(token)
    if not (token.isascii() and token.isprintable() and " " not in token and len(token) >= LEAST_TOKEN):
        raise InputError(
            f"{where}: expected {LEAST_TOKEN} or more letters, digits and signs of ASCII without blanks; "
            "`openssl rand -hex 32` makes one"
        )
    return token


def check_exposure(host: str, token: str | None) -> None:
    """Refuse to listen if other machines could send requests without a token.

    Raises:
        InputError: other machines could reach `host`, and no token is set.
    """
    if token is None and not is_loopback(host):
        raise InputError(
            f"listening on {host} lets others in, and there is no token. Set {TOKEN} or {TOKEN_FILE}, which "
            "every caller then needs, or listen on 127.0.0.1"
        )


def protect_rays_token() -> None:
    """Make Ray's token file readable by its owner alone, because Ray lets every user read it."""
    file = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):
        if file.stat().st_mode & OTHERS_MAY:
            file.chmod(0o600)


def digest(token: str) -> bytes:
    """Return the token's hash, which a server keeps instead of the token."""
    return hashlib.sha256(token.encode()).digest()


def knows(authorization: str, expected: bytes) -> bool:
    """Return whether the `Authorization` header has the token with this digest; compare in constant time.

    >>> knows("Bearer an-example-token", digest("an-example-token")), knows("Bearer guess", digest("other"))
    (True, False)
    """
    scheme, _, token = authorization.partition(" ")
    right = hmac.compare_digest(hashlib.sha256(token.strip().encode()).digest(), expected)
    return right and scheme.lower() == "bearer"
