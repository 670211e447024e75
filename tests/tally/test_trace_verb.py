"""`tallymark trace`: the life of a message, read from both databases."""

from __future__ import annotations

from tests.tally.ground import Journey


def test_a_message_s_life_is_told_from_its_transaction_to_its_effect(journey: Journey) -> None:
    first, second = journey.add(["alice", "alice"])
    code, told = journey.tallymark("trace", first, *journey.databases)
    assert (code, told["verdict"]) == (0, "pending")
    assert [(event["station"], event.get("because")) for event in told["events"]] == [
        ("outbox", None),
        ("relay", "no relay has lane 0"),
    ]
    journey.send()
    journey.receive()
    code, told = journey.tallymark("trace", first, *journey.databases)
    assert (code, told["id"], told["key"], told["verdict"]) == (0, first, "alice", "delivered")
    assert sorted(event["station"] for event in told["events"]) == [
        "apply",
        "inbox",
        "log",
        "outbox",
        "relay",
        "relay",
    ]
    by_station = {event["station"]: event for event in told["events"]}
    assert by_station["log"]["offset"] == by_station["inbox"]["offset"] is not None
    assert [by_station[station]["clock"] for station in ("outbox", "inbox")] == ["commit", "commit"]
    assert by_station["apply"]["outcome"] == "applied"
    assert by_station["relay"]["receipt_offset"] is not None
    code, lives = journey.tallymark("trace", "--key", "alice", "--since", "1h", *journey.databases)
    assert (code, [life["id"] for life in lives]) == (0, [first, second])


def test_what_is_wrong_is_said_in_a_line(journey: Journey) -> None:
    code, told = journey.tallymark("trace", "0199f1f0-0000-7000-8000-000000000001", *journey.databases)
    assert code == 1
    assert "there is no message 0199f1f0" in told["error"]
    code, told = journey.tallymark("trace", "--key", "alice", *journey.databases)
    assert (code, told["error"]) == (2, "--key needs --since")
    code, told = journey.tallymark("trace", *journey.databases)
    assert code == 2
    code, told = journey.tallymark("trace", "--key", "a", "--since", "soon", *journey.databases)
    assert (code, told["error"]) == (2, "'soon' is not a moment")
