"""What must not be written down: passwords and tokens, in configurations and in texts.

config.yaml, MLflow's parameters  ◀── without_secrets(tree)     by the names of keys
log.txt, console, error messages  ◀── redact(text)              by the shape of addresses, options, variables
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
# `token` alone is a secret; `eou_token`, `max_tokens` and their like are a language model's words.
_NAME = (
    r"(?:[\w-]+[_-])?(?:password|passwd|passphrase|secret|credentials?|api[_-]?key|access[_-]key|secret[_-]key"
    r"|signature|private[_-]key|(?:access|api|auth|bearer|hf|hub|refresh|session)[_-]token)"
)
_SECRET_KEY = re.compile(rf"{_NAME}|token", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@\"']+(?=@)")
_VALUE = r"(?!\*|\$\{)[^\s&,'\"}]+"
_AFTER_NAME = re.compile(rf"(?<![\w-])((?:{_NAME})['\"]?\s*[:=]\s*['\"]?){_VALUE}", re.IGNORECASE)
_AFTER_TOKEN = re.compile(rf"(?<![\w-])(token=|['\"]token['\"]\s*:\s*['\"]){_VALUE}", re.IGNORECASE)
_IN_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+(?!\*)[\w.~+/=-]{8,}")
_SHORTEST = 8  # a variable's value that is shorter may be any word


def is_secret(key: str) -> bool:
    """Whether the last part of a dotted key names a secret.

    >>> [is_secret(key) for key in ("reward.api_key", "token", "MLFLOW_TRACKING_PASSWORD", "hub_token")]
    [True, True, True, True]
    >>> [is_secret(key) for key in ("max_tokens", "tokenizer", "task.eou_token", "keep_checkpoints", "key")]
    [False, False, False, False, False]
    """
    return _SECRET_KEY.fullmatch(key.rpartition(".")[2]) is not None


def redact(text: str) -> str:
    """`text` without credentials in addresses, values of secret options, and values of secret variables.

    >>> redact("MLflow at https://ada:pw@host/ fails")
    'MLflow at https://***@host/ fails'
    >>> redact("reward.api_key=abc seed=1 https://host/?token=abc&n=1")
    'reward.api_key=*** seed=1 https://host/?token=***&n=1'
    >>> redact("reward={name: mine, api_key: abc} {'token': 'abc'} the token: 3")
    "reward={name: mine, api_key: ***} {'token': '***'} the token: 3"
    >>> redact("reward.api_key=${oc.env:KEY}")  # where it is, not what it is
    'reward.api_key=${oc.env:KEY}'
    """
    text = _IN_ADDRESS.sub(HIDDEN, text)
    text = _AFTER_NAME.sub(rf"\1{HIDDEN}", text)
    text = _AFTER_TOKEN.sub(rf"\1{HIDDEN}", text)
    text = _IN_HEADER.sub(rf"\1 {HIDDEN}", text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and value in text and (is_secret(name) or name.endswith("_TOKEN")):
            text = text.replace(value, HIDDEN)
    return text


def without_secrets(tree: Any, key: str = "") -> Any:
    """A configuration with secrets hidden, in the same shape.

    >>> without_secrets({"tracking": {"uri": "https://a:b@host"}, "reward": [{"api_key": "x"}]})
    {'tracking': {'uri': 'https://***@host'}, 'reward': [{'api_key': '***'}]}
    >>> without_secrets({"uri": "https://host/x?token=abcdef&X-Amz-Signature=01"})
    {'uri': 'https://host/x?token=***&X-Amz-Signature=***'}
    """
    if isinstance(tree, Mapping):
        return {name: without_secrets(value, str(name)) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_secrets(value, key) for value in tree]
    if is_secret(key) and tree is not None and tree != "":
        return HIDDEN
    return redact(tree) if isinstance(tree, str) else tree


class RedactingFormatter(logging.Formatter):
    """Log lines, tracebacks included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
