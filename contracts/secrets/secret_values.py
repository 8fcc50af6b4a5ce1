"""The secrets that this process knows, by name and by value, and functions that hide them in texts.

options, command line ──▶ remember_in        values under a secret name, passwords in addresses
environment ─────────────▶ (read anew)        the same, for each text
                              │
any text ─────────────────▶ hide(text)         each value becomes ***, however it is escaped
"""

import html
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Any
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
SHORTEST = 8  # characters: a shorter value may be any word, so it is hidden only beside its name
LEAST_PIECE = 12  # characters: the shortest piece of a cut value that is hidden
DISTINCT = 16  # characters: shorter values of letters or digits alone may be a word or a number

# `token` alone names a secret; `eou_token` and `max_tokens` are terms of language models.
_OWNERS = (
    "access|api|auth|bearer|csrf|deploy|github|gitlab|hf|hub|identity|jwt|mlflow|oauth|openai|personal|private"
    "|ray|refresh|registry|sas|secret|security|session|slack|wandb|whetstone"
)
NAME = (
    r"[\w-]{0,64}(?:password|passwd|passphrase|secret|credentials?|api[_-]?key|access[_-]?key|account[_-]?key"
    r"|secret[_-]?key|private[_-]?key|encryption[_-]?key|connection[_-]?string|authorization)"
    rf"|(?:[\w-]{{1,64}}[_-])?(?:(?:{_OWNERS})[_-]?token|signature)|[\w-]{{1,64}}[_-]pwd"
)
_SECRET_KEY = re.compile(rf"{NAME}|token", re.IGNORECASE)
# Environment variables have no terms of language models, so any token, key or password names a secret.
_SECRET_VARIABLE = re.compile(r".*_(?:TOKEN|KEY|PASS|PWD|PW|PAT|DSN|COOKIE|AUTH)", re.IGNORECASE)
USER_OF_ADDRESS = re.compile(r"(?<=://)[^/\s\"'?#]+(?=@)")
_SCHEME = re.compile(r"(?i)^(?:bearer|basic|token)\s+")
_NUMBER = re.compile(r"[-+.\deE]+")
_PEM_FENCE = "-----"

_remembered: set[str] = set()


def is_secret(key: str) -> bool:
    """Return whether the last part of a dotted key names a secret.

    >>> [is_secret(key) for key in ("reward.api_key", "token", "MLFLOW_TRACKING_PASSWORD", "hub_token")]
    [True, True, True, True]
    >>> [is_secret(key) for key in ("clientSecret", "PGPASSWORD", "Authorization", "apiKey")]
    [True, True, True, True]
    >>> [is_secret(key) for key in ("max_tokens", "tokenizer", "task.eou_token", "keep_checkpoints", "key")]
    [False, False, False, False, False]
    """
    return _SECRET_KEY.fullmatch(key.rpartition(".")[2]) is not None


@lru_cache(maxsize=4096)
def is_secret_variable(name: str) -> bool:
    """Return whether the name of an environment variable says that it holds a secret.

    >>> [is_secret_variable(name) for name in ("HF_TOKEN", "OPENAI_KEY", "DB_PASS", "MY_SECRET")]
    [True, True, True, True]
    >>> [is_secret_variable(name) for name in ("PWD", "PATH", "RAY_AUTH_MODE", "HF_TOKEN_PATH")]
    [False, False, False, False]
    """
    return name not in ("PWD", "OLDPWD") and (is_secret(name) or _SECRET_VARIABLE.fullmatch(name) is not None)


def remember_secret(value: object) -> None:
    """Treat this value as a secret from now on, under any name."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        _remembered.add(str(value))


def remember_in(tree: Any, key: str = "") -> None:
    """Remember the secrets of a configuration: values under secret names, and passwords in addresses.

    Example: `remember_in({"reward": [{"api_key": "sk-12345678"}], "uri": "https://ada:hunter2-2@host"})`
    """
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            remember_in(value, key if is_secret(key) else str(name))
    elif isinstance(tree, list | tuple | set | frozenset):
        for value in tree:
            remember_in(value, key)
    elif is_secret(key):
        remember_secret(tree)
    elif isinstance(tree, str) and "://" in tree:
        for value in passwords_in(tree):
            remember_secret(value)


def passwords_in(text: str) -> Iterator[str]:
    """Yield the passwords of the addresses in a text, as written and unquoted.

    >>> list(passwords_in("postgresql://ada:p%40ssword@host/db"))
    ['p%40ssword', 'p@ssword']
    """
    whole = text.partition("://")[2].partition("/")[0].rpartition("@")[0]  # if the whole text is one address
    for credentials in dict.fromkeys([*USER_OF_ADDRESS.findall(text), *([] if " " in text else [whole])]):
        user, colon, password = credentials.partition(":")
        value = password if colon else user if len(user) >= DISTINCT else ""  # a token may stand alone
        yield from dict.fromkeys(filter(None, (value, unquote(value))))


def hide(text: str) -> str:
    """Replace every known secret value by ***, unless it may be a word or a number.

    This is for data, where ordinary words and numbers must stay. A secret is also found as JSON, HTML, a URL,
    a shell or `repr` writes it.

    >>> remember_secret("an-example-secret")
    >>> hide("401 for an-example-secret")
    '401 for ***'
    """
    for form in known_forms():
        if form in text and not _may_be_a_word(form):
            text = text.replace(form, HIDDEN)
    return text


def hide_in(tree: Any) -> Any:
    """Apply `hide` to every text of a structure; leave the rest unchanged."""
    if isinstance(tree, Mapping):
        return {key: hide_in(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [hide_in(value) for value in tree]
    return hide(tree) if isinstance(tree, str) else tree


def hide_pieces(text: str) -> str:
    """Apply `hide`, and also hide values that are broken over lines or cut off at one end.

    >>> remember_secret("a-longer-example-0123456789")
    >>> hide_pieces("401 for a-longer-example-01…"), hide_pieces("a-longer-\\nexample-0123456789")
    ('401 for ***…', '***')
    """
    text = hide(text)
    compact = "".join(text.split())
    for form in known_forms():
        if len(form) < DISTINCT:
            break
        if "".join(form.split()) in compact:
            text = _broken_pattern(form).sub(HIDDEN, text)
        least = max(LEAST_PIECE, len(form) // 2)
        text = _without_begin(text, form, least)
        text = _without_begin(text[::-1], form[::-1], least)[::-1]
    return text


def hide_words(text: str) -> str:
    """Hide also the values that `hide` keeps as possible words, unless they are part of a longer word.

    >>> remember_secret("hunterhunter")
    >>> hide("hunterhunter is no huntershunterhunter"), hide_words("hunterhunter, no huntershunterhunter")
    ('hunterhunter is no huntershunterhunter', '***, no huntershunterhunter')
    """
    for form in known_forms():
        if form in text and _may_be_a_word(form):
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", HIDDEN, text)
    return text


def _without_begin(text: str, form: str, least: int) -> str:
    """Replace every prefix of `form` (one spelling of a secret) of at least `least` characters by ***."""
    while (place := text.find(form[:least])) >= 0:
        length = _shared(form, text[place:])
        text = text[:place] + HIDDEN + text[place + length :]
    return text


def _shared(one: str, other: str) -> int:
    """Return the length of the longest common prefix."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def begins_secret(text: str) -> int:
    """Return the number of characters at the end of `text` that may be the beginning of a secret.

    >>> remember_secret("an-example-secret")
    >>> begins_secret("401 for an-exam"), begins_secret("401 for ")
    (7, 0)
    """
    longest = 0
    for form in known_forms():
        for length in range(min(len(form) - 1, len(text)), longest, -1):
            if text.endswith(form[:length]):
                longest = length
                break
    return longest


def known_forms() -> tuple[str, ...]:
    """Return every spelling of every known secret, the longest first, so that no rest stays visible."""
    values = set(_remembered)
    for name in list(os.environ):
        value = os.environ.get(name, "")
        if is_secret_variable(name):
            values.add(value)
        elif "://" in value and "@" in value:
            values.update(passwords_in(value))
    return _forms_of(frozenset(values))


@lru_cache(maxsize=16)
def _forms_of(values: frozenset[str]) -> tuple[str, ...]:
    forms = {form for value in values for form in _forms(value)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _forms(value: str) -> Iterator[str]:
    value = value.strip()
    if _is_file(value):  # GOOGLE_APPLICATION_CREDENTIALS=/home/ada/key.json names the secret's place
        return
    whole = _SCHEME.sub("", value)  # a header's value
    # A key of several lines may also appear line by line.
    lines = [line.strip() for line in whole.splitlines()] if "\n" in whole else []
    for part in (whole, *(line for line in lines if len(line) >= DISTINCT and _PEM_FENCE not in line)):
        if len(part) >= SHORTEST and part != HIDDEN:
            yield from _escaped(part)


def _escaped(value: str) -> set[str]:
    """Return the value and its escaped spellings."""
    quoted = {value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted |= {json.dumps(text)[1:-1] for text in quoted}  # an error inside of another error
    escaped = {html.escape(text) for text in quoted}
    by_jinja = {text.replace("&#x27;", "&#39;").replace("&quot;", "&#34;") for text in escaped}
    addresses = {quote(value), quote(value, safe=""), quote_plus(value)}
    lower = {re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), address) for address in addresses}
    others = {shlex.quote(value).strip("'"), value.replace("'", "''"), " ".join(value.split())}
    return quoted | escaped | by_jinja | addresses | lower | others


def _may_be_a_word(form: str) -> bool:
    return (form.isalpha() and len(form) < DISTINCT) or _NUMBER.fullmatch(form) is not None


@lru_cache(maxsize=1024)
def _broken_pattern(form: str) -> re.Pattern[str]:
    return re.compile(r"\s*".join(map(re.escape, "".join(form.split()))))


@lru_cache(maxsize=1024)
def _is_file(value: str) -> bool:
    return value.startswith(("/", "~")) and len(value) < 4096 and os.path.exists(os.path.expanduser(value))
