"""How old what lies ahead is: of what Kafka does not say it, it is not known, and never 0."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tallymark.broker import peek
from tallymark.cli import inboxview, pipelineview
from tallymark.console import lag
from tallymark.store.postgres.inboxoperators import PositionStatus
from tests.inbox.ground import Ground

NOW = datetime.now(UTC)
AHEAD, DENIED, NOTHING = ("t", 0), ("t", 1), ("t", 2)
OLDEST = {AHEAD: NOW - timedelta(seconds=60), NOTHING: None}


def position(place: tuple[str, int]) -> PositionStatus:
    return PositionStatus("c", *place, 5, 1, None, None, False, None, 5, 0, NOW - timedelta(days=3), NOW)


def test_kafka_tells_what_lies_ahead_that_nothing_does_or_nothing_at_all(inbox_ground: Ground) -> None:
    """A partition that may not be read, or is not there, answers with an error: that is no age."""
    inbox_ground.send(30)
    topic = inbox_ground.topic
    found = peek.logged_at(
        {"bootstrap.servers": inbox_ground.servers},
        {(topic, 0): 0, (topic, 1): 1_000, (topic, 7): 0},
        within_s=10.0,
    )
    assert (topic, 7) not in found
    logged = found[topic, 0]
    assert logged is not None
    assert abs(datetime.now(UTC) - logged) < timedelta(minutes=5)


def test_what_is_at_its_end_has_nothing_ahead_and_is_not_asked_for() -> None:
    bounds = {NOTHING: (0, 5)}
    assert peek.oldest_left({"bootstrap.servers": "nowhere:1"}, bounds, {NOTHING: 5}) == {NOTHING: None}


def test_an_age_that_is_not_known_is_not_told_as_none() -> None:
    """An operator who may describe a topic and not read it saw a lag of a million, and 0 seconds."""
    ends = inboxview.Ends(dict.fromkeys((AHEAD, DENIED, NOTHING), 9), OLDEST)
    ages = [inboxview._lag_s(position(place), ends) for place in (AHEAD, DENIED, NOTHING)]
    assert ages[0] is not None
    assert ages[0] >= 60
    assert ages[1:] == [None, 0.0]
    assert pipelineview._age({AHEAD, DENIED}, OLDEST) is None
    known = pipelineview._age({AHEAD, NOTHING}, OLDEST)
    assert known is not None
    assert known >= 60
    asked = frozenset((*place, 5) for place in (AHEAD, DENIED, NOTHING))
    seen = lag.Ends(ends.ends, {(*place, 5): at for place, at in OLDEST.items()}, {}, asked, answered=True)
    ages = [seen.lag_s(position(place), NOW) for place in (AHEAD, DENIED, NOTHING)]
    assert ages == [60.0, None, 0.0]
