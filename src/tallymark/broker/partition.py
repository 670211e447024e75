"""Which partition a key belongs to: murmur2, as in Java, over a partition count that the caller has recorded. Pure.

The relay places keys itself, rather than leaving it to the client, so that partitions added to a topic do not move
keys in mid-stream. Nothing is remembered here: keys may be long, and whoever places millions knows what to keep.
"""

from __future__ import annotations

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, as an unsigned 32-bit number."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    rest = length - whole
    if rest:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner gives this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
