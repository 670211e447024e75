"""`tallymark tally`: what is refused before Spark is started, and resends by the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tally.ground import Journey


def test_what_is_wrong_with_the_question_is_said_at_once(journey: Journey) -> None:
    journey.add(["alice"])
    journey.send()
    code, said = journey.tally("--consumer", "nobody")
    assert (code, said["error"]) == (2, "there is no consumer nobody")
    code, said = journey.tally("--topic", "elsewhere")
    assert code == 2
    assert "to topic elsewhere" in said["error"]
    assert journey.bank.topic in said["remedy"]
    code, said = journey.tally("--since", "soon")
    assert (code, said["error"]) == (2, "'soon' is not a moment")
    code, said = journey.tally("--late-after", "long")
    assert (code, said["error"]) == (2, "'long' is not a duration")
    servers = ["--bootstrap-servers", journey.bank.servers]
    code, said = journey.tallymark("tally", "run", "--database", journey.ledger.url, *servers)
    assert (code, said["error"]) == (2, "none of the databases has an outbox")
    journey.on_bank("update tallymark.topics set topic_id = 'another'")
    code, said = journey.tally()
    assert code == 1
    assert "was deleted and made anew" in said["error"]


def test_resending_is_refused_where_it_would_do_harm(journey: Journey, tmp_path: Path) -> None:
    (pending,) = journey.add(["alice"])
    code, done = journey.tallymark("tally", "resend", pending, *journey.databases)
    assert (code, done["refused"]) == (1, {pending: "it is pending: it will be sent anyway"})
    journey.send()
    journey.receive()
    # What order means to it was written down when it started.
    assert journey.on_ledger("select unordered, versioned from tallymark.consumers") == [([], [])]
    # The consumer has it: sending it again changes nothing, and says so by a number.
    code, done = journey.tallymark("tally", "resend", pending, "--reason", "to see", *journey.databases)
    assert (code, [(row["id"], row["resend"]) for row in done["resent"]]) == (0, [(pending, 1)])
    code, done = journey.tallymark("tally", "resend", pending, *journey.databases)
    # Its newest row counts, and that is on its way.
    assert done["refused"][pending] == "it is pending: it will be sent anyway"
    journey.send()
    journey.receive()
    assert journey.on_ledger("select count(*) from tallymark.applications") == [(1,)]
    numbers = [dict(record.headers).get("tm_resend") for record in journey.bank.log()]
    assert numbers == [None, b"1"]
    code, life = journey.tallymark("trace", pending, *journey.databases)
    assert (code, life["verdict"]) == (0, "delivered")
    assert [event["what"] for event in life["events"] if event["station"] == "outbox"] == [
        "added in its transaction",
        "added again to be resent",
    ]
    assert [event["what"] for event in life["events"] if event["station"] == "audit"] == ["tally.resend"]
    # Without the consumers nobody can say what was applied.
    code, done = journey.tallymark("tally", "resend", pending, "--database", journey.bank.url)
    assert (code, done["resent"]) == (1, [])
    file = tmp_path / "findings.json"
    file.write_text(json.dumps([{"id": "0199f1f0-0000-7000-8000-000000000001", "verdict": "lost-in-log"}]))
    code, said = journey.tallymark("tally", "resend", "--findings", str(file), *journey.databases)
    assert (code, said["error"]) == (2, "none of these messages is of this outbox")
