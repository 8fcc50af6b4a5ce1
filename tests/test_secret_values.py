"""Secrets by their values: which are known, in which forms they are found, and what stays as it is."""

import html
import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from contracts.errors import InputError, RunError
from contracts.secrets.output import GuardedStream, guard_logging, guarded_output, redacted_errors
from contracts.secrets.redaction import redact, without_secrets
from contracts.secrets.secret_values import hide, hide_pieces, is_secret, remember_in, remember_secret
from contracts.settings import Settings, build

SECRET = "q7-Zebra.crossing+11"
ODD = "p(7)*'a\"b\\c/d [x] {y}%+é"
KEY = "\n".join(
    ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcwggSjAgEAAoIB", "-----END"]
)


@pytest.mark.parametrize(
    "tree",
    [
        {"reward": [{"name": "mine", "api_key": SECRET}]},
        {"reward": {"options": {"password": [SECRET]}}},
        {"credentials": {"user": "ada", "key": SECRET}},
        {"tracking": {"uri": f"https://ada:{SECRET}@host/"}},
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        {"clientSecret": SECRET},
    ],
)
def test_the_secrets_of_a_configuration_are_known_by_their_values(tree: object) -> None:
    assert redact(f"401 for {SECRET}") != "401 for ***"
    remember_in(tree)
    assert redact(f"401 for {SECRET}") == "401 for ***"
    assert SECRET not in str(without_secrets(tree))


def test_an_options_secret_is_known_as_soon_as_it_is_typed() -> None:
    class Options(Settings):
        api_key: str
        number: int = 0

    with pytest.raises(InputError) as refused:
        build(Options, {"api_key": SECRET, "number": "x"}, "reward")
    assert redact(f"the server said: {SECRET}") == "the server said: ***"
    assert "reward.number: got 'x'" in str(refused.value)
    with pytest.raises(InputError, match=r"reward\.api_key: Input should be a valid string") as refused:
        build(Options, {"api_key": 77}, "reward")
    assert "77" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "MY_PASSWORD", "PGPASSWORD", "OPENAI_KEY", "APP_SECRET", "DB_PASS"]
)
def test_a_variable_that_is_named_like_a_secret_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, SECRET)
    assert redact(f"401 for {SECRET}") == hide(f"401 for {SECRET}") == "401 for ***"


def test_so_is_the_password_of_an_address_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:{quote(ODD, safe='')}@proxy:3128")
    assert redact(f"the proxy takes no {ODD}") == "the proxy takes no ***"


@pytest.mark.parametrize("secret", [SECRET, ODD])
@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        lambda text: repr([text]),
        lambda text: json.dumps({"a": text}),
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: json.dumps({"error": repr({"a": text})}),
        lambda text: f"https://host/?q={quote(text)}&n=1",
        lambda text: f"https://host/?q={quote(text, safe='')}&n=1",
        lambda text: f"https://host/?q={quote(text, safe='').lower()}&n=1" if text == ODD else quote(text),
        quote_plus,
        html.escape,
        lambda text: html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        shlex.quote,
        lambda text: f"error: {text}: unexpected",
    ],
)
def test_a_value_is_found_however_it_is_written(secret: str, write: object) -> None:
    remember_secret(secret)
    written = write(secret)  # type: ignore[operator]
    assert "***" in hide(written)
    assert len(hide(written)) <= len(written) - len(secret) + 3 + 2 * written.count("\\")
    for piece in ("Zebra", "(7)", "%287%29", "a\\", "d%20"):
        assert piece not in hide(written)


def test_a_value_is_found_in_pieces() -> None:
    remember_secret(SECRET)
    remember_secret(KEY)
    for broken in (
        "q7-Zebra.cro\nssing+11",
        "q7-Zebra\n  .crossing+11",
        "q7-Zebra.crossi…",
        "…bra.crossing+11",
    ):
        assert "rossi" not in (hidden := hide_pieces(f"401 for {broken} and more")) and "***" in hidden
    for shown in (KEY, KEY.replace("\n", "\\n"), " ".join(KEY.split()), KEY.splitlines()[1]):
        assert "MIIEv" not in hide_pieces(shown) and "AQEFAAS" not in hide_pieces(shown)


def test_data_stays_as_it_is_and_valid() -> None:
    for weak in ("validation", "12345678", "short"):
        remember_secret(weak)
    row = json.dumps({"split_name": "validation", "number": 12345678, "text": "short"})
    assert hide(row) == row
    assert redact("password validation 12345678 short") == "password *** *** short"
    assert redact("invalidation 0.123456789") == "invalidation 0.123456789"
    texts = 'password = "hunter2" Bearer abcdefgh1234 https://a:b@host'
    assert hide(texts) == texts != redact(texts)


def test_a_file_that_a_variable_names_is_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert redact(f"{file} can't be read") == f"{file} can't be read"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password='two words' seed=1", "password='***' seed=1"),
        ("postgresql://ada:p@ss@host/db", "postgresql://***@host/db"),
        ('{"error": "{\\"api_key\\": \\"a b\\"}"}', '{"error": "{\\"api_key\\": \\"***\\"}"}'),
        ("reward.api_key: got 5; expected a text", "reward.api_key: got 5; expected a text"),
        ("a basic understanding of bearer authentication", "a basic understanding of bearer authentication"),
        ("token hf_abcdefghijklmnop0123 is refused", "token *** is refused"),
        ("{'api_key': None, 'n': 1}", "{'api_key': None, 'n': 1}"),
        ("score(self, token=None)", "score(self, token=None)"),
        ("api_key: null", "api_key: null"),
        ("password=true, seed=1", "password=true, seed=1"),
        ("token=Nonesuch password=true-love", "token=*** password=***"),
        ("signature: (self, samples)", "signature: (self, samples)"),
        ("signature: (samples: Sequence[Sample]) -> list", "signature: (samples: Sequence[Sample]) -> list"),
        ("signature: () -> list", "signature: () -> list"),
        ("password=(7-Zebra", "password=***"),
        ("password=''", "password=''"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END", "-----BEGIN PRIVATE KEY-----***-----END"),
    ],
)
def test_shapes(text: str, expected: str) -> None:
    assert redact(text) == expected and redact(expected) == expected


def test_a_secret_that_is_printed_in_two_pieces_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    remember_secret(SECRET)
    stream = GuardedStream(sys.stdout, hide_pieces)
    for letter in f"says {SECRET}, and goes":
        stream.write(letter)
        stream.flush()
    assert capsys.readouterr().out == "says ***, and goes"
    stream.write("a prompt> ")
    stream.flush()
    assert capsys.readouterr().out == "a prompt> "  # what begins no secret waits for nothing
    stream.write(SECRET[:9])
    stream.finish()
    assert capsys.readouterr().out == SECRET[:9]


def test_a_command_gives_its_streams_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with guarded_output():
        print("all", end="")
        assert sys.stdout.encoding == before[0].encoding and not sys.stdout.isatty()
    assert (sys.stdout, sys.stderr) == before and capsys.readouterr().out == "all"


def test_every_logger_is_guarded_whoever_handles_it(tmp_path: Path) -> None:
    remember_secret(SECRET)
    guard_logging()
    handler = logging.FileHandler(tmp_path / "log.txt")
    logger = logging.getLogger("some_library.of_others")
    logger.addHandler(handler)
    try:
        logger.warning("%s is wrong, %d times", SECRET, 3)
        try:
            raise OSError(SECRET)
        except OSError:
            logger.exception("failed")
        logger.warning("as %s", "ever")
    finally:
        logger.removeHandler(handler)
        handler.close()
    log = (tmp_path / "log.txt").read_text()
    assert "*** is wrong, 3 times" in log and "OSError: ***" in log and "as ever" in log
    assert SECRET not in log


def test_an_error_leaves_its_process_without_the_secret() -> None:
    remember_secret(SECRET)
    with pytest.raises(InputError, match=r"^no \*\*\*$") as known, redacted_errors():
        raise InputError(f"no {SECRET}")
    assert known.value.__cause__ is None and known.value.__suppress_context__
    with pytest.raises(RunError, match=r"^OSError: no \*\*\*$"), redacted_errors():
        raise OSError(f"no {SECRET}")
    with pytest.raises(OSError, match="as it is"), redacted_errors():
        raise OSError("as it is")


def test_no_option_of_ours_is_taken_for_a_secret() -> None:
    """Else its value would be *** in config.yaml."""
    from contracts.components import find
    from reward_servers.graders import METRICS, REWARDS
    from services.config.component_settings import TABLES
    from services.config.settings import RunSettings

    def names_of(kind: Any) -> set[str]:
        if not (isinstance(kind, type) and issubclass(kind, Settings)):
            return set()
        inner = {name for field in kind.model_fields.values() for name in names_of(field.annotation)}
        return {*kind.model_fields, *inner}

    tables = [(kind, table) for kind, (table, *_) in TABLES.items()] + [
        ("reward", REWARDS),
        ("metric", METRICS),
    ]
    names = names_of(RunSettings)
    for kind, table in tables:
        for name in table:
            names |= names_of(find(kind, name, table))
    assert len(names) > 300
    assert {name for name in names if is_secret(name)} == set()


def test_looking_for_secrets_takes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pattern backtracks, or looks ahead to the end from many places: a long text takes a moment."""
    import time

    for number in range(20):
        monkeypatch.setenv(f"SERVICE_{number}_TOKEN", f"{SECRET}-{number}-{os.getpid()}")
    began = time.process_time()
    for text in ("a", "password_", "://", "'\\", "token=", "x://a", "password='", "@", "://a@", "bearer "):
        redact(text * (200_000 // len(text)))
    for text in ("sk-", "hf_-", "eyJ", "eyJ-", "eyJaaaaaaaa.", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----"):
        redact(text * (200_000 // len(text)))
    redact("".join("password=" + "\\" * number + "'x " for number in range(600, 0, -1)))
    # It takes about four, most of it for the variables; any of these that takes the square takes a minute.
    assert time.process_time() - began < 30
