"""Which positions a run looks at, and the log from where on: behind what is certified, unless told otherwise.

Certificates speak of offsets, and hold for the log that they were given for. One that was cut back since, or made anew,
has other messages there: so before anything is passed by, the last messages of certified windows are looked for in their
places, one in each partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tallymark.errors import UsageError
from tallymark.pipeline.reconcileground import SKEW, Ground, TallyConfig, place_of
from tallymark.pipeline.reconcileports import Stations
from tallymark.store.postgres.tally import ConsumerView
from tallymark.tally.certificates import Statement
from tallymark.tally.chain import newest, trusted, width
from tallymark.tally.records import Place


def choose_range(ground: Ground, sources: Stations, config: TallyConfig) -> None:
    """Which positions, and the log from where on: behind what is certified, unless told otherwise."""
    producer = sources.producer(ground.name)
    chain, rows = _certified(sources, ground)
    if rows:
        if config.window_rows not in (None, rows):
            raise UsageError(
                f"windows of {ground.name} are of {rows} rows: certificates were given for them",
                remedy="leave --window out",
            )
        ground.rows = rows
        ground.certified = {said.window.start // rows: said.offsets for said in chain}
    ground.first = ground.lowest
    if config.since is not None:
        since = producer.position_since(config.since)
        ground.first = ground.upto if since is None else since - since % ground.rows
        # The whole window is looked at: also what was added to it before.
        begun = min(config.since, producer.added_at(ground.first) or config.since)
        moment = int((begun - SKEW).timestamp() * 1000)
        early = sources.log.at_time(list(ground.starts), moment)
        # Asked after the ends: what was logged meanwhile lies behind them.
        ground.read_from = {
            place: max(at, min(early.get(place, at), ground.ends[place]))
            for place, at in ground.starts.items()
        }
    elif not config.everything and not config.filtered:
        pass_certified(ground, chain, _open_in(sources, ground))
        # An archive is of the log that it was made of; what it has not come to is no loss.
        gone_on = ground.goes_on and not sources.log.is_copy
        if gone_on and (why := other_log(ground, sources.log.claims(anchored(ground)))):
            ground.remarks.append(f"{ground.name}: {why}: everything is read again")
            ground.first, ground.read_from = ground.lowest, dict(ground.starts)
    if config.until is not None:
        until = producer.position_since(config.until)
        ground.upto = ground.upto if until is None else min(ground.upto, until)


def pass_certified(ground: Ground, said: Iterable[Statement], amiss: Collection[int] = ()) -> None:
    """Begin behind the windows that are certified, in their order, up to the first of which there is more to say.

    Something of it was on its way, or somebody is owed it who was not asked then: it is looked at again. So is one of
    which something is open (`amiss`, by number), for nobody else would close it: a run that looked earlier has said so
    and ended behind the one that certified it, or it was found since and may have been mended.
    """
    for each in said:
        if each.window.end <= ground.first:
            continue
        done = each.settled and each.window.start // ground.rows not in amiss
        if each.window.start > ground.first or not done or not _speaks_of_all(each, ground.consumers):
            break
        ground.first = each.window.end
        resume = {place_of(text): offset for text, offset in each.resume.items()}
        ground.anchors |= {place_of(text): (high, each.window) for text, (_, high) in each.offsets.items()}
        ground.read_from = {
            place: max(start, resume.get(place, start)) for place, start in ground.starts.items()
        }


def anchored(ground: Ground) -> dict[Place, int]:
    """Where the last messages of the windows that are passed by must stand, as far as the log reaches back to them."""
    return {
        place: offset
        for place, (offset, _) in ground.anchors.items()
        if offset >= ground.starts.get(place, offset + 1) and place[0] not in ground.compacted
    }


def other_log(ground: Ground, claims: Mapping[Place, int | None]) -> str | None:
    """Why the log is not the one that those windows were certified of; None: nothing says so.

    `claims`: the positions that the messages in those places claim today; None where there is none.
    """
    cut = [place for place, at in ground.read_from.items() if at > ground.ends[place]]
    other = [place for place, at in claims.items() if at is None or at not in ground.anchors[place][1]]
    if not cut and not other:
        return None
    topic, partition = min(cut + other)
    return f"the log of {topic}/{partition} was cut back, or made anew, since it was certified"


def _open_in(sources: Stations, ground: Ground) -> set[int]:
    findings = sources.findings(ground.name)
    if findings is None:
        return set()
    return findings.open_in(ground.rows, ground.answerable(ground.absent(findings.consumers())))


def _certified(sources: Stations, ground: Ground) -> tuple[list[Statement], int | None]:
    """By window; of one that was certified again the last word counts. And the width of windows, where one was given."""
    findings = sources.findings(ground.name)
    chain = [] if findings is None else findings.chain()
    sound = trusted(chain)
    if len(sound) < len(chain):
        whole = {each.number for each in sound}
        odd = [each.number for each in chain if each.number not in whole]
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        ground.remarks.append(
            f"{ground.name}: certificate {odd[0]}{more} was tampered with, and counts for nothing; what it spoke of is"
            " looked at again: `tallymark tally verify --chain-only`"
        )
    said = sorted((each.said for each in newest(sound)), key=lambda each: each.window)
    return said, width(chain)


def _speaks_of_all(said: Statement, consumers: Mapping[str, ConsumerView]) -> bool:
    """Whether a certificate accounts for every consumer of today that is owed something of its window."""
    return all(label in said.consumers or not _owed(said.offsets, view) for label, view in consumers.items())


def _owed(offsets: Mapping[str, tuple[int, int]], view: ConsumerView) -> bool:
    """Whether some of it stands behind where the consumer began; where nobody knows when that was, it does."""
    stood = [(place_of(text), high) for text, (_, high) in offsets.items()]
    return any(high >= view.starts.get(place, 0) for place, high in stood if place[0] in view.topics)
