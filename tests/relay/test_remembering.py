"""What a publisher remembers of headers and keys stays in bounds, and gives what would be computed anew."""

from __future__ import annotations

from tallymark.broker import remembered
from tallymark.broker.partition import partition_of
from tallymark.broker.patience import Patience
from tallymark.message import kafka_headers


def test_keys_are_placed_as_anew_and_forgotten_in_time() -> None:
    placing = remembered.Placing(7)
    for number in range(remembered._KNOWN_KEYS + 10):
        assert placing[b"%d" % number] == partition_of(b"%d" % number, 7)
    assert len(placing) <= remembered._KNOWN_KEYS
    long = b"k" * 5_000
    assert placing[long] == partition_of(long, 7)
    assert long not in placing


def test_headers_are_parsed_as_anew_and_forgotten_in_time() -> None:
    headings = remembered.Headings()
    for number in range(remembered._KNOWN_HEADINGS + 10):
        text = f'{{"n":"{number}"}}'
        assert headings[text] == list(kafka_headers(text))
    assert len(headings) <= remembered._KNOWN_HEADINGS
    long = f'{{"n":"{"x" * 5_000}"}}'
    assert headings[long] == list(kafka_headers(long))
    assert long not in headings


def test_patience_ends_by_itself_or_when_it_is_told_to_hurry() -> None:
    patience = Patience(60)
    goes_on = patience.begin()
    assert goes_on()
    patience.hurry(-1)
    patience.hurry(60)
    assert not goes_on(), "told twice, it does not begin anew"
    assert not patience.begin()()
    assert not Patience(-1).begin()()
