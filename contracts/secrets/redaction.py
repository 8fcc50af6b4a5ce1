"""Redaction of passwords and tokens in configurations and texts.

config.yaml, MLflow's parameters      ◀── without_secrets(tree)   by the names of keys, and as `redact` does
notes, log lines, errors, answers     ◀── redact(text)            known values, and what looks like a secret
files of texts, tables, stdout        ◀── hide(text)              known values only: other data stays as it is

`contracts.secrets.secret_values` holds the values. `contracts.secrets.output` applies both to
everything that is printed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.secrets.secret_values import (
    HIDDEN,
    NAME,
    USER_OF_ADDRESS,
    hide_pieces,
    hide_words,
    is_secret,
    passwords_in,
    remember_secret,
)

_QUOTE = r"\\{0,31}['\"]"  # allows for JSON inside of JSON, five levels deep
# A value in quotes ends at the same quotes, any other at a blank. Some are not hidden: a hidden value, a
# variable's name, no value at all (`token=None`), and a method's parameters (`signature: (self, samples)`).
_NO_VALUE = r"(?:none|null|true|false)(?=[\s&,;'\")\]}]|\Z)|\((?:\)|\*{0,2}\w{1,64} ?[,:=)])"
_VALUE = (
    rf"(?P<quote>{_QUOTE})(?!\*\*\*|\$\{{)(?P<quoted>(?!(?P=quote)).+?)(?P=quote)"
    rf"|(?!{_NO_VALUE})(?P<open>(?:{_QUOTE})?)"
    r"(?P<bare>(?!\\*['\"]?(?:\*\*\*|\$\{)|(?:bearer|basic|token)\s)[^\s&,'\"}]+)"
)
# `password: is required` holds no password.
_PROSE = r"(?!\s*:\s+(?:got|is|are|was|there|expected|must|should|Input|Field|may|can|has|needs)\b)"
_AFTER_NAME = re.compile(
    rf"(?P<name>(?<![\w-])(?:{NAME})(?:{_QUOTE})?{_PROSE}\s*[:=]\s*(?:(?i:bearer|basic|token)\s+)?)(?:{_VALUE})",
    re.IGNORECASE,
)
_AFTER_TOKEN = re.compile(
    rf"(?P<name>(?<![\w-])(?:token=|{_QUOTE}token{_QUOTE}\s*:\s*(?={_QUOTE})))(?:{_VALUE})", re.IGNORECASE
)
_IN_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+(?=\S*\d|\S{20})(?!\*\*\*)[\w.~+/=-]{8,}")
# The keys of some services, by their shape alone, because they may come from a file or another machine. A
# look-ahead that may begin at many places has a limit; otherwise time grows with the square of the length.
_WELL_KNOWN = re.compile(
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abpr]-|AKIA)(?=[\w-]{0,200}\d)[\w-]{16,}"
    r"|\beyJ[\w-]{8,1000}+\.eyJ[\w-]{8,}\.[\w-]*"
    r"|(?<=-----BEGIN )([A-Z ]*PRIVATE KEY-----).+?(?=-----END|\Z)",
    re.DOTALL,
)


def redact(text: str) -> str:
    """Return `text` with *** for passwords in addresses, values of secret options and of secret variables.

    >>> redact("MLflow at https://ada:pw@host/ fails")
    'MLflow at https://***@host/ fails'
    >>> redact("reward.api_key=abc seed=1 https://host/?token=abc&n=1")
    'reward.api_key=*** seed=1 https://host/?token=***&n=1'
    >>> redact("reward={name: mine, api_key: abc} {'token': 'abc d'} the token: 3")
    "reward={name: mine, api_key: ***} {'token': '***'} the token: 3"
    >>> redact("reward.api_key=${oc.env:KEY}")  # names the variable, holds no secret
    'reward.api_key=${oc.env:KEY}'
    >>> redact("reward.api_key: is required, and was not given")
    'reward.api_key: is required, and was not given'
    >>> redact("score(self, token=None) does not fit its signature: (self, samples)")
    'score(self, token=None) does not fit its signature: (self, samples)'
    """
    text = hide_words(hide_pieces(text))
    text = USER_OF_ADDRESS.sub(HIDDEN, text)
    text = _AFTER_NAME.sub(_named, text)
    text = _AFTER_TOKEN.sub(_named, text)
    text = _IN_HEADER.sub(rf"\1 {HIDDEN}", text)
    return _WELL_KNOWN.sub(lambda match: (match.group(1) or "") + HIDDEN, text)


def remember_typed(words: Sequence[str]) -> None:
    """Remember the secrets of a command line: `reward.api_key=…`, `{password: …}`, `--token …`.

    >>> remember_typed(["reward={name: mine, api_key: typed-at-a-prompt}", "--token", "typed-beside-it"])
    >>> redact("mine: 401 for typed-at-a-prompt, typed-beside-it")
    'mine: 401 for ***, ***'
    """
    for word, following in zip(words, [*words[1:], ""], strict=False):
        for pattern in (_AFTER_NAME, _AFTER_TOKEN):
            for match in pattern.finditer(word):
                remember_secret(match["quoted"] or match["bare"])
        for password in passwords_in(word):
            remember_secret(password)
        if word.startswith("--") and is_secret(word.lstrip("-")):
            remember_secret(following)
        key, equals, value = word.partition("=")
        if equals and is_secret(key.lstrip("-")):
            remember_secret(value)  # the whole value, with any characters


def without_secrets(tree: Any, key: str = "") -> Any:
    """Return a configuration with its secrets hidden, in the same shape.

    >>> without_secrets({"tracking": {"uri": "https://a:b@host"}, "reward": [{"api_key": "x"}]})
    {'tracking': {'uri': 'https://***@host'}, 'reward': [{'api_key': '***'}]}
    >>> without_secrets({"uri": "https://host/x?token=abcdef&X-Amz-Signature=01"})
    {'uri': 'https://host/x?token=***&X-Amz-Signature=***'}
    """
    if isinstance(tree, Mapping):
        return {
            name: without_secrets(value, key if is_secret(key) else str(name)) for name, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [without_secrets(value, key) for value in tree]
    if is_secret(key) and tree is not None and tree != "":
        return HIDDEN
    return redact(tree) if isinstance(tree, str) else tree


def _named(match: re.Match[str]) -> str:
    if match["quoted"]:
        return f"{match['name']}{match['quote']}{HIDDEN}{match['quote']}"
    return f"{match['name']}{match['open']}{HIDDEN}"
