"""`tallymark tally verify`: the chain of certificates, and what the data say of each window today."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tallymark.pipeline.reconcilecertify import stated
from tallymark.pipeline.reconcileground import SKEW, place_of, place_text
from tallymark.tally.certificates import Statement, differences
from tallymark.tally.chain import Certificate, broken_links, newest, unseen
from tallymark.tally.history import id_ms
from tallymark.tally.records import Place

if TYPE_CHECKING:
    from tallymark.pipeline.reconcilecells import Cells
    from tallymark.pipeline.reconcileground import Ground


# Window 0 begins below it.
FIRST_POSITION = 1
# From when on an inbox knows what it kept, as long as it has dropped nothing: the first moment that an id can name.
FIRST_ID_MS = 2**32


@dataclass(slots=True)
class Verification:
    """What came of it."""

    certificates: int = 0
    # Windows whose data were recomputed; those that retention has (partly) taken since.
    recomputed: int = 0
    past: int = 0
    # Windows of which the copies that were looked at do not reach what was certified, or certified again.
    newer: int = 0
    wrong: list[dict[str, Any]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.wrong and not self.idle

    @property
    def idle(self) -> bool:
        """Whether there was something to compare, and the copies reach none of it."""
        return bool(self.newer) and not self.recomputed and not self.past

    def as_json(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "certificates": self.certificates,
            "recomputed": self.recomputed,
            "past": self.past,
            "newer": self.newer,
            "wrong": self.wrong,
        }


def links(chain: list[Certificate], found: Verification, ends: Collection[tuple[int, str]] = ()) -> None:
    """The chain by itself: no data are needed to see that a certificate was changed. `ends`: where runs saw it end."""
    found.certificates += len(chain)
    windows = {each.number: _window(each) for each in chain}
    broken = broken_links(chain)
    told = {number for number, _ in broken}
    for number, what in [*broken, *(each for each in unseen(chain, ends) if each[0] not in told)]:
        found.wrong.append({"certificate": number, "window": windows.get(number), "what": what})


def data(chain: list[Certificate], ground: Ground, cells: Cells, found: Verification) -> None:
    """Each certified window once more, from the rows and the log of today, or of the copies that were made of them."""
    broken = {number for number, _ in broken_links(chain)}
    sound = [each for each in chain if each.number not in broken]
    told = newest(each for each in sound if not _is_newer(each, ground))
    found.newer += len(newest(sound)) - len(told)
    for certificate in told:
        said = certificate.said
        if said.outbox_id != ground.view.outbox_id:
            what = f"it was given for outbox {said.outbox_id}, and this is {ground.view.outbox_id}"
            found.wrong.append(
                {"certificate": certificate.number, "window": _window(certificate), "what": what}
            )
            continue
        number = said.window.start // ground.rows
        remade = _of_another_log(certificate, ground)
        dropped = _dropped(said, ground, remade)
        # An archive drops nothing: what Kafka has dropped since, it does not know.
        forgotten = _forgotten(ground, cells, number, said.offsets if ground.copied_at else dropped)
        # An archive holds what there was since it was begun: it drops nothing.
        early = [] if ground.copied_at else _before_their_time(said, dropped, ground, cells)
        early = [place for place in early if _topic(place) not in remade]
        # Windows need not end where partitions do.
        shortened = max(said.window.start, FIRST_POSITION) < ground.view.outbox_from
        if shortened or (dropped and not early) or forgotten & said.consumers.keys():
            found.past += 1
            if shortened:
                continue
        now = stated(ground, cells, number)
        found.recomputed += 1
        wrong = [f"the log has dropped some of it before its time: {', '.join(early)}"] if early else []
        wrong += differences(
            said, now, log=not dropped, without=forgotten | ground.retired | _moved_on(said, ground)
        )
        for what in wrong:
            found.wrong.append(
                {"certificate": certificate.number, "window": _window(certificate), "what": what}
            )


def _is_newer(given: Certificate, ground: Ground) -> bool:
    """Whether copies were made before all was there that a certificate speaks of.

    The moments decide: that of the oldest copy; where it is a little later, by clocks that differ, how far each copy has
    come. A copy that was made later and has come less far was moved back: it is held to the certificate all the same.
    """
    said = given.said
    if ground.copied_at is None or said.outbox_id != ground.view.outbox_id:
        return False
    if _ends_before(said, ground.topics, ground.ends):
        return True
    looked_at = said.looked_at or given.issued_at
    if looked_at is not None:
        if looked_at > ground.copied_at:
            return True
        if looked_at < ground.copied_at - SKEW:
            return False
    readers = [view for label, view in ground.consumers.items() if label in said.consumers]
    return said.window.end > ground.upto or any(
        _ends_before(said, view.topics, view.next_offsets) for view in readers
    )


def _ends_before(said: Statement, topics: Collection[str], ends: Mapping[Place, int]) -> bool:
    stood = [(place_of(text), high) for text, (_, high) in said.offsets.items()]
    return any(high >= ends.get(place, 0) for place, high in stood if place[0] in topics)


def _of_another_log(given: Certificate, ground: Ground) -> set[str]:
    """Topics that were deleted and made anew since it was given, as somebody has accepted."""
    looked_at = given.said.looked_at or given.issued_at
    return {topic for topic, at in ground.view.remade.items() if looked_at is None or looked_at < at}


def _dropped(said: Statement, ground: Ground, remade: Collection[str]) -> list[str]:
    """The partitions of which the log has dropped something of the window."""
    starts = {place_text(place): start for place, start in ground.starts.items()}
    return [
        place
        for place, (low, _) in said.offsets.items()
        if low < starts.get(place, low + 1) or _topic(place) in remade
    ]


def _moved_on(said: Statement, ground: Ground) -> set[str]:
    """Consumers that no longer read all of the window's topics that they read once: nobody says when they left off."""
    topics = {_topic(place) for place in said.offsets}
    return {label for label, view in ground.consumers.items() if view.dropped & topics}


def _before_their_time(said: Statement, dropped: list[str], ground: Ground, cells: Cells) -> list[str]:
    """Those of them that retention cannot have been at: the topic keeps all, or for longer than the window is old.

    Messages are as old as their ids say, and in doubt as the oldest of the window; ids that say nothing excuse it.
    """
    starts = {place_text(place): start for place, start in ground.starts.items()}
    ids = cells.ids.get(said.window.start // ground.rows)
    made = [None, None] if ids is None else [id_ms(each) for each in ids]
    # Of one topic, all gone: the youngest too.
    whole = len(said.offsets) == len(dropped) and all(
        high < starts.get(place, 0) for place, (_, high) in said.offsets.items()
    )
    alone = len({_topic(place) for place in said.offsets}) == 1
    at = made[1] if whole and alone else made[0]
    age_s = None if at is None else ground.view.at.timestamp() - at / 1000
    return [
        place
        for place in dropped
        if place in starts and not may_have_expired(age_s, ground.expires_after_s.get(_topic(place)))
    ]


def may_have_expired(age_s: float | None, expires_after_s: float | None) -> bool:
    """Whether retention may have dropped what is so old. Clocks differ."""
    if expires_after_s is None:
        return False
    return age_s is None or max(age_s, 0) + SKEW.total_seconds() >= expires_after_s


def _topic(place: str) -> str:
    return place.rpartition("/")[0]


def _forgotten(ground: Ground, cells: Cells, number: int, dropped: Iterable[str]) -> set[str]:
    """Consumers whose inbox has dropped what it kept of the time of the window's first message.

    Of ids without a time: some of a topic of which the log has `dropped` some of the window.
    """
    if number not in cells.ids:
        return set()
    made = [id_ms(each) for each in cells.ids[number]]
    topics = {_topic(place) for place in dropped} if None in made else set()
    return {
        label
        for label, view in ground.consumers.items()
        if view.kept_from_ms > (FIRST_ID_MS if made[0] is None else made[0]) or view.pruned & topics
    }


def _window(certificate: Certificate) -> list[int] | None:
    # Not from the statement: it may have been tampered with.
    return None if certificate.window is None else [certificate.window.start, certificate.window.end]
