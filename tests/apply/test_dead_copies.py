"""C9: the copy of a dead letter for a topic tells what a reader there needs, and stands in no other message's way."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tallymark.inbox.ports import Failed
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests import journal
from tests.apply.given import queued

TOPIC = "graveyard"


@pytest.fixture
def store(ledger: str) -> Iterator[PostgresInboxStore]:
    journal.query(ledger, "delete from tallymark.topics")
    journal.query(
        ledger,
        "insert into tallymark.topics (topic, topic_id, partitions, max_message_bytes) values (%s, 'id', 1, 1000)",
        [TOPIC],
    )
    store = PostgresInboxStore(ledger, "ledger", dead_letter_topic=TOPIC)
    yield store
    store.close()


def test_a_copy_that_cannot_be_made_is_named_and_the_others_leave(
    store: PostgresInboxStore, ledger: str
) -> None:
    big, _, plain = rows = [
        queued(b"x" * 1001, key=b"big"),
        queued(b"{", key=b"odd"),
        queued(
            b"{}",
            key=b"plain",
            headers='{"ce_type":"transfer.made","content-type":"text/plain","traceparent":"00-1-2-01",'
            '"raw":{"base64":"/w=="},"none":null,"tag":"a","tag":"b"}',
        ),
    ]
    reasons = ["too much", "half a pair: \ud83d", "no such account"]
    with store.begin() as tx:
        tx.keep([row.message for row in rows])
        tx.fail(
            [
                Failed(row, reason, "Traceback, line 5", None, hold_key=False)
                for row, reason in zip(rows, reasons, strict=True)
            ]
        )
    died = dict(journal.query(ledger, "select id, reason from tallymark.dead_letters"))
    assert died.keys() >= {row.message.id for row in rows}
    assert died[big.message.id].startswith("too much; no copy in graveyard: a value of 1001 bytes is larger")
    assert died[plain.message.id] == "no such account"
    copies = {
        bytes(key): json.loads(headers, object_pairs_hook=list)
        for key, headers in journal.query(
            ledger, "select key, headers::text from tallymark.outbox where topic = %s", [TOPIC]
        )
    }
    assert copies.keys() == {b"odd", b"plain"}
    assert dict(copies[b"odd"])["tm_dead_reason"] == "half a pair: ?"
    headers = dict(copies[b"plain"])
    assert headers["tm_dead_traceback"] == "Traceback, line 5"
    assert (headers["ce_type"], headers["tm_dead_type"]) == ("tallymark.dead", "transfer.made")
    assert (headers["content-type"], headers["traceparent"]) == ("text/plain", "00-1-2-01")
    assert dict(headers["raw"]) == {"base64": "/w=="}
    assert [value for name, value in copies[b"plain"] if name == "tag"] == ["a", "b"]
