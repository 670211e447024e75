"""What was sent to a consumer, as a stream: all of it, once, in order, in fixed memory, whoever reads how slowly."""

from __future__ import annotations

import base64
import json
import socket
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
import pytest

from tallymark.console.client import Client
from tallymark.errors import AccessDenied, OutcomeUnknown, Unreachable, UsageError
from tallymark.lifecycle import MessageState, Role, TokenRole
from tallymark.local.cluster import LocalCluster
from tallymark.store.postgres import streaming
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.searchpool import SearchPool
from tests.console.conftest import made
from tests.console.ground import DISCARDED, FAILED, SENT, WAITING, Service, serve
from tests.waiting import wait_for

OUT = (FAILED, WAITING, DISCARDED)
# Lane 1 has sent everything; lane 0 its first hundred positions, and the rest is on its way.
TWO_LANES = """
insert into tallymark.outbox (id, topic, key)
select tallymark.new_id(), 't', convert_to('key-' || n % 40, 'utf8') from generate_series(1, 400) n;
insert into tallymark.batches (covered, lane, number, token, kind, after_position, upto, messages, mode, state, owner,
                               epoch, sent_at)
values (100, 0, 1, gen_random_uuid(), 'range', 0, 100, 50, 'transactional', 'sent', 'relay-1', 1, now()),
       (400, 0, 2, gen_random_uuid(), 'range', 100, 400, 150, 'transactional', 'sending', 'relay-1', 1, null),
       (400, 1, 1, gen_random_uuid(), 'range', 0, 400, 200, 'transactional', 'sent', 'relay-1', 1, now());
update tallymark.lanes set covered = 400, last_number = 2, epoch = 1;
"""


def lines(service: Service, role: TokenRole = TokenRole.OPERATOR, /, **query: Any) -> list[dict[str, Any]]:
    answer = service.get("/v1/consumers/ledger/messages", role, **query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_everything_that_was_sent_and_nothing_else(looking: Service) -> None:
    *messages, end = lines(looking)
    expected = looking.query(
        "select position, id::text, key, value from tallymark.outbox where topic = 'transfers' and position <= %s "
        "and position <> all(%s) order by position",
        SENT,
        list(OUT),
    )
    assert [(each["position"], each["id"]) for each in messages] == [row[:2] for row in expected]
    assert [base64.b64decode(each["key"]) for each in messages] == [row[2] for row in expected]
    values = [None if each["value"] is None else base64.b64decode(each["value"]) for each in messages]
    assert values == [row[3] for row in expected]
    assert messages[0]["headers"]["ce_source"] == "/bank"
    assert end == {"end": True, "messages": len(expected), "upto": SENT, "earliest": 1}


def test_between_positions_and_between_times(looking: Service) -> None:
    *messages, end = lines(looking, **{"from": 1001, "to": 2001})
    assert end["messages"] == len(messages) == 900
    assert (messages[0]["position"], messages[-1]["position"]) == (1001, 1999)
    start = looking.value("select created_at from tallymark.outbox where position = 1001")
    until = looking.value("select created_at from tallymark.outbox where position = 2001")
    by_time = lines(looking, **{"from": start.isoformat(), "to": until.isoformat()})[:-1]
    assert [each["position"] for each in by_time] == [each["position"] for each in messages]


def test_ten_years_are_all_there_is_and_an_empty_range_is_none(looking: Service) -> None:
    whole = len(lines(looking))
    assert len(lines(looking, **{"from": "2016-01-01T00:00:00Z", "to": "2036-01-01T00:00:00Z"})) == whole
    assert lines(looking, **{"from": 9_000_000_000})[-1]["messages"] == 0
    assert lines(looking, **{"from": 500, "to": 500})[-1]["messages"] == 0
    assert lines(looking, **{"from": "2036-01-01T00:00:00Z"})[-1]["messages"] == 0


def test_a_viewer_gets_no_contents(looking: Service) -> None:
    first = lines(looking, TokenRole.VIEWER)[0]
    assert "value" not in first
    assert "headers" not in first
    assert first["value_bytes"] > 0


def test_topics_may_be_named_where_the_consumer_is_not_known(looking: Service) -> None:
    assert looking.get("/v1/consumers/stranger/messages").status_code == 404
    answer = looking.get("/v1/consumers/stranger/messages", topic=["notes"])
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert {each["topic"] for each in found[:-1]} == {"notes"}


def test_headers_written_over_several_lines_stay_one_line(own: Service) -> None:
    own.query(
        "insert into tallymark.outbox (id, topic, key, value, headers) values (tallymark.new_id(), 'odd', '\\x00ff', "
        '\'\\x0d0a\', E\'{\\n "ce_source": "/x",\\r\\n "note": "a\\\\nb"\\n}\')'
    )
    own.send_all()
    answer = own.get("/v1/consumers/x/messages", TokenRole.OPERATOR, topic="odd")
    (message, _) = [json.loads(line) for line in answer.text.splitlines()]
    assert message["headers"] == {"ce_source": "/x", "note": "a\nb"}
    assert base64.b64decode(message["key"]) == b"\x00\xff"


def test_what_unicode_ends_lines_with_may_stand_in_a_header(own: Service) -> None:
    note = "a\u2028b\u2029c\u0085d"
    own.query(
        "insert into tallymark.outbox (id, topic, headers) values (tallymark.new_id(), 'odd', %s::json)",
        json.dumps({"ce_source": "/x", "note": note}, ensure_ascii=False),
    )
    own.send_all()
    with Client(own.url, own.tokens[TokenRole.OPERATOR]) as client:
        assert [each.headers["note"] for each in client.sent_to("x", topics=["odd"])] == [note]


def test_what_is_marked_under_a_stream_leaves_no_hole_in_a_key(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch on its way when its positions go by: nothing of its lane comes behind it, though it be sent meanwhile."""
    with made(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        migrate(url, role=Role.PRODUCER, lanes=2)
        connection.execute(TWO_LANES.encode())
        monkeypatch.setattr(streaming, "_ROWS", 50)
        pool = SearchPool(url)
        told: list[dict[str, Any]] = []
        for piece in streaming.Streaming(pool).lines(["t"], streaming.Span(), payload=False):
            told += [json.loads(line) for line in piece.split(b"\n") if line]
            if told[-1].get("position", 0) > 150:
                connection.execute("update tallymark.batches set state = 'sent', sent_at = now()")
        *messages, end = told
        keys: dict[str, list[int]] = {}
        for position, key in connection.execute(
            "select position, encode(key, 'base64') from tallymark.outbox"
        ):
            keys.setdefault(key, []).append(position)
        for key, positions in keys.items():
            streamed = [each["position"] for each in messages if each["key"] == key]
            assert streamed == positions[: len(streamed)], key
        assert (end["messages"], end["upto"]) == (len(messages), 100)
        assert max(each["position"] for each in messages) > 350, "the other lane goes on"
        pool.close()


def test_large_headers_fill_a_slice_too(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(cluster) as url, psycopg.connect(url, autocommit=True) as connection:
        migrate(url, role=Role.PRODUCER, lanes=1)
        connection.execute(
            "insert into tallymark.outbox (id, topic, headers) select tallymark.new_id(), 't', "
            "json_build_object('note', repeat('x', 10000)) from generate_series(1, 10)"
        )
        connection.execute("update tallymark.lanes set covered = 10")
        monkeypatch.setattr(streaming, "_BYTES", 25_000)
        pool = SearchPool(url)
        pieces = list(streaming.Streaming(pool).lines(["t"], streaming.Span(), payload=True))
        assert [piece.count(b"\n") for piece in pieces] == [3, 3, 3, 1, 1], (
            "as many as weigh so much, and the end"
        )
        pool.close()


def test_the_client_reads_it_with_types(looking: Service) -> None:
    with Client(looking.url, looking.tokens[TokenRole.OPERATOR]) as client:
        sent = list(client.sent_to("ledger", since=1, until=101))
        assert [each.position for each in sent] == [p for p in range(1, 101) if p % 10 and p not in OUT]
        assert sent[0].value == b'{"n":1}'
        assert sent[0].key == b"key-1"
        assert sent[0].added_at.tzinfo is not None
        hour = datetime.now(UTC) - timedelta(hours=3)
        assert sum(1 for _ in client.sent_to("ledger", since=hour)) > 4000
        trace = client.message(sent[0].id)
        assert trace is not None
        assert trace["topic"] == "transfers"
        assert client.message("unknown") is None
        failed = list(client.messages(state=MessageState.FAILED))
        assert [each.position for each in failed] == [WAITING, FAILED]
        assert client.outboxes()[0]["name"] == "main"
        assert client.consumers()[0]["name"] == "ledger"
        with pytest.raises(UsageError, match=r"topic"):
            list(client.messages(topic="no/topic"))
        with pytest.raises(UsageError, match="without a zone"):
            list(client.sent_to("ledger", since=datetime(2026, 1, 1)))  # noqa: DTZ001 - that is the point


def test_the_client_says_what_is_wrong_in_our_words(looking: Service) -> None:
    with Client(looking.url, "tmk_wrong") as client, pytest.raises(AccessDenied, match="not known"):
        client.outboxes()
    with (
        Client(looking.url, looking.tokens[TokenRole.VIEWER]) as client,
        pytest.raises(AccessDenied, match="may not"),
    ):
        client.pause_consumer("ledger", reason="x")
    with Client("http://127.0.0.1:1", "x") as client, pytest.raises(Unreachable):
        client.outboxes()
    with pytest.raises(UsageError):
        Client("ftp://x", "y")


def begun(service: Service, path: str) -> socket.socket:
    """Ask, and read only the beginning of the answer."""
    address = urlsplit(service.url)
    connection = socket.create_connection((address.hostname or "", address.port or 0), timeout=20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    token = service.tokens[TokenRole.OPERATOR]
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    assert b" 200 " in connection.recv(20_000)
    return connection


@pytest.mark.timeout(120)
@pytest.mark.full
def test_slow_clients_cost_little_and_hold_nothing(large_database: str) -> None:
    service = serve(large_database)
    with service.child:
        _memory_does_not_grow_with_the_stream(service)
        _those_who_stop_reading_hold_nothing(service)


def _memory_does_not_grow_with_the_stream(service: Service) -> None:
    process = psutil.Process(service.child.pid)
    before = highest = got = 0
    with httpx.stream(
        "GET",
        service.url + "/v1/consumers/x/messages",
        params={"topic": "large"},
        headers={**service.headers(TokenRole.OPERATOR), "Accept-Encoding": "identity"},
        timeout=60,
    ) as answer:
        for piece in answer.iter_bytes(1 << 20):
            got += len(piece)
            before = before or process.memory_info().rss
            highest = max(highest, process.memory_info().rss)
    assert got > 100_000_000
    assert highest - before < 40 * 2**20, f"{(highest - before) / 2**20:.0f} MiB"


def _those_who_stop_reading_hold_nothing(service: Service) -> None:
    process = psutil.Process(service.child.pid)
    before = process.memory_info().rss
    stopped = [begun(service, "/v1/consumers/x/messages?topic=large") for _ in range(12)]
    try:
        wait_for(
            lambda: (
                service.value(
                    "select count(*) from pg_stat_activity where application_name = 'tallymark serve' "
                    "and datname = current_database() and state <> 'idle'"
                )
                == 0
            ),
            what="no connection is held for those who do not read",
        )
        # Others are served as before, by the same few connections.
        for _ in range(20):
            assert service.get("/v1/messages").status_code == 200
        grown = process.memory_info().rss - before
        assert grown < 12 * 12 * 2**20, f"{grown / 2**20:.0f} MiB for 12 streams of 110 MB"
    finally:
        for connection in stopped:
            connection.close()


@pytest.mark.timeout(120)
def test_who_stops_reading_is_left_and_who_is_cut_off_knows_it(large_database: str) -> None:
    service = serve(large_database, "--patience", "1", suffix="-again")
    with service.child:
        with begun(service, "/v1/consumers/x/messages?topic=large") as connection:
            service.child.wait_output("console.stalled")
            taken = 0
            try:
                while piece := connection.recv(1 << 20):
                    taken += len(piece)
            except ConnectionResetError:
                pass
        assert taken < 20_000_000  # what lay in the buffers on the way, of 110 MB
        assert service.get("/v1/messages").status_code == 200
        with Client(service.url, service.tokens[TokenRole.OPERATOR]) as client:
            stream = client.sent_to("x", topics=["large"])
            next(stream)
            service.child.kill()
            with pytest.raises(OutcomeUnknown, match="cut off"):
                for _ in stream:
                    pass
