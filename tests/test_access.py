"""Tokens: where they come from, which are refused, and that only the right one is let in."""

from pathlib import Path

import pytest

from contracts.errors import InputError
from contracts.network.access import check_exposure, digest, is_loopback, knows, token_of

TOKEN = "0123456789abcdef"


def test_a_token_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_of({}) is None
    assert token_of({"WHETSTONE_TOKEN": TOKEN}) == TOKEN
    assert token_of({"WHETSTONE_TOKEN_FILE": str(file)}) == TOKEN
    assert token_of({"WHETSTONE_TOKEN": TOKEN + "x", "WHETSTONE_TOKEN_FILE": str(file)}) == TOKEN + "x"


@pytest.mark.parametrize("token", ["short", "with a blank between", "Schlüssel-und-mehr", "line\nline" * 4])
def test_a_token_that_can_be_guessed_or_not_sent_is_refused_without_being_told(token: str) -> None:
    with pytest.raises(InputError, match="WHETSTONE_TOKEN: expected 16 or more") as refusal:
        token_of({"WHETSTONE_TOKEN": token})
    assert token not in str(refusal.value)


@pytest.mark.parametrize("content", [None, "", "\n", b"\xff\xfe"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str | bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match="WHETSTONE_TOKEN_FILE="):
        token_of({"WHETSTONE_TOKEN_FILE": str(file)})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_only_loopback_goes_without_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(InputError, match="lets others in, and there is no token"):
        check_exposure(host, None)
    check_exposure(host, TOKEN)
    check_exposure("127.0.0.1", None)


@pytest.mark.parametrize(
    "header", ["", TOKEN, "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN} x"]
)
def test_no_other_header_is_let_in(header: str) -> None:
    assert not knows(header, digest(TOKEN))
    assert knows(f"bearer {TOKEN}", digest(TOKEN))
