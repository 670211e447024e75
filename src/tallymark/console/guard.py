"""How often an address may come with a wrong token. Pure: the time is given.

So many wrong ones within a minute, and the address is refused until the minute is over, without a look into the
database. A bearer who was let in a short while ago still is: somebody else's guesses behind the same proxy must not
lock them out. Bounded: the addresses that were seen longest ago are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass
class FailedTokens:
    """Wrong tokens by address. Used by one thread at a time."""

    allowed: int = 10
    within_s: float = 60.0
    remembered: int = 10_000
    _wrong: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)
    _let_in: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    def wait_s(self, address: str, token_hash: bytes | None, now: float) -> float:
        """Seconds until this address may try again; 0 where it may now."""
        let_in = None if token_hash is None else self._let_in.get(token_hash)
        if let_in is not None and let_in >= now - self.within_s:
            return 0.0
        recent = [at for at in self._wrong.get(address, ()) if at > now - self.within_s]
        if len(recent) < self.allowed:
            return 0.0
        return max(0.0, recent[-self.allowed] + self.within_s - now)

    def was_wrong(self, address: str, now: float) -> None:
        times = self._wrong.setdefault(address, [])
        times[:] = [at for at in times[-self.allowed :] if at > now - self.within_s] + [now]
        self._wrong.move_to_end(address)
        _trim(self._wrong, self.remembered)

    def was_right(self, token_hash: bytes, now: float) -> None:
        self._let_in[token_hash] = now
        self._let_in.move_to_end(token_hash)
        _trim(self._let_in, self.remembered)


def _trim(book: OrderedDict[str, list[float]] | OrderedDict[bytes, float], size: int) -> None:
    while len(book) > size:
        book.popitem(last=False)
