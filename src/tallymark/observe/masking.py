"""Secrets are masked on their way out, twice over.

By shape: the password in a URL, `password=…` in a connection string, any `*.password`-like setting beside its
value, a token of the query interface. By value: what the settings said is a secret is remembered for the life of the
process, and its literal text is masked wherever it turns up (a driver's error, a client's log line).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

MASK = "********"

# Shorter ones would blot out innocent words; by shape they are still masked.
_SHORTEST_LITERAL = 4

_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|jaas|credential|ssl\.key\.pem|oauthbearer\.config", re.IGNORECASE
)
# Names that look like secrets and are not: they say where a secret lives.
_PUBLIC_NAME = re.compile(r"(location|file|path|url)$", re.IGNORECASE)

# The user's part may be empty; the password runs up to the last @ before the host.
_URL_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]*://[^\s:/@?#]*):([^\s/]+)@", re.IGNORECASE)
_ASSIGNED = re.compile(
    # Begins where a word begins: from every letter of a long word the search would be quadratic.
    r"(?<![\w.\-])(?P<name>[\w.\-]*(?:password|passwd|passphrase|secret)[\w.\-]*[\"']?\s*[=:]\s*)"
    r"(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s,;&}\"')]+)",
    re.IGNORECASE,
)

# A token of the query interface; what is left of it says whose mask this is.
_TOKEN = re.compile(r"\b(tmk_)[A-Za-z0-9_-]{20,}")

_remembered: set[str] = set()


def remember(secret: str) -> None:
    """Mask this text wherever it appears from now on."""
    if len(secret) >= _SHORTEST_LITERAL:
        _remembered.update({secret, quote(secret, safe=""), unquote(secret)})


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret (`sasl.password`, `ssl.key.pem`, …)."""
    return bool(_SECRET_NAME.search(name)) and not _PUBLIC_NAME.search(name)


def url_password(url: str) -> str | None:
    """The password inside a database URL or a libpq connection string, if it has one."""
    if found := _URL_PASSWORD.search(url):
        return found.group(2)
    if found := _ASSIGNED.search(url):
        return found.group("value").strip("'\"")
    return None


def mask(text: str) -> str:
    """The same text with every secret in it replaced by stars."""
    for secret in sorted(_remembered, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MASK)
    text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    text = _TOKEN.sub(rf"\1{MASK}", text)
    return _ASSIGNED.sub(lambda found: f"{found.group('name')}{MASK}", text)


def masked(value: object) -> object:
    """The same value in JSON's own types, with every secret in it masked, by its name or by its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            str(name): MASK if item and is_secret_name(str(name)) else masked(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(item) for item in value]
    return mask(str(value))
