"""By what a statement begins or ends a transaction, or changes whose it is, wherever in its text that stands. Pure.

Strings, quoted names, dollar quotes and comments are taken out first: what stands in them is no command, and what
stands behind them is. ROLLBACK TO a savepoint is the handler's own affair.
"""

from __future__ import annotations

import re
from functools import lru_cache

_CONTROL = re.compile(
    r"(?:^|;)\s*(commit|end|rollback(?!\s+(?:work\s+|transaction\s+)?to\b)|abort|begin|start\s+transaction"
    r"|prepare\s+transaction"
    r"|set\s+(?:(?:local|session)\s+)?(?:role|transaction|session\s+authorization)|set\s+session\s+characteristics"
    r"|reset\s+(?:role|session\s+authorization))\b",
    re.IGNORECASE,
)
# What hides commands, or what looks like one. Where its end is missing it goes on to the end of the text.
_HIDING = re.compile(
    r"""(?<![\w$])[eE]'(?:[^'\\]|''|\\.)*(?:'|\Z)"""  # E'it\'s'
    r"""|'(?:[^']|'')*(?:'|\Z)"""
    r"""|"(?:[^"]|"")*(?:"|\Z)"""
    r"""|(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)"""
    r"""|--[^\n]*"""
    r"""|/\*""",
    re.DOTALL,
)
_COMMENT_ENDS = re.compile(r"/\*|\*/")
# The body of a function in standard SQL, with commands and an END of its own.
_BODY = re.compile(r"\bbegin\s+atomic\b", re.IGNORECASE)
# Longer ones are not said again and again, and not worth the memory.
_LONG = 8_192


def control_word(text: str) -> str | None:
    """By what a statement begins or ends a transaction, or sets its role or its kind; None where it does not."""
    return _remembered(text) if len(text) <= _LONG else _found(text)


def _found(text: str) -> str | None:
    bare = _bare(text) if any(mark in text for mark in (";", "--", "/*")) else text
    found = _CONTROL.match(bare) if _BODY.search(bare) else _CONTROL.search(bare)
    return " ".join(found[1].upper().split()) if found else None


# A handler says the same few statements millions of times.
_remembered = lru_cache(maxsize=1024)(_found)


def _bare(text: str) -> str:
    """Without what hides commands; something stands in its place, so that no two words become one."""
    pieces, at = [], 0
    while found := _HIDING.search(text, at):
        opening = found[0][:2]
        pieces += [text[at : found.start()], " " if opening in ("--", "/*") else "''"]
        at = _comment_end(text, found.end()) if opening == "/*" else found.end()
    return "".join([*pieces, text[at:]])


def _comment_end(text: str, at: int) -> int:
    """Comments of this kind stand within each other."""
    depth = 1
    while depth and (found := _COMMENT_ENDS.search(text, at)):
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return at if not depth else len(text)
