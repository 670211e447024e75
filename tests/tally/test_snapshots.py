"""Snapshots and the archive in place of the databases and Kafka: the same findings. And findings as files."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tallymark.broker.reach import admin_client
from tallymark.errors import Problem, UsageError
from tallymark.message import new_id
from tallymark.pipeline.reconcile import Tally
from tallymark.pipeline.reconcilefiles import FindingFiles
from tallymark.pipeline.reconcileground import TallyConfig
from tallymark.pipeline.reconcileports import Stations
from tallymark.pipeline.reconcilesnapshot import SnapshotSources
from tallymark.pipeline.reconcilesources import Sources
from tallymark.pipeline.snapshot import take
from tallymark.store.postgres.findings import Findings
from tallymark.store.postgres.snapshot import exported
from tallymark.store.postgres.tallyrecord import recorded
from tallymark.tally.report import TallyReport
from tests.pipeline.archiving import Ground as ArchiveGround
from tests.promises.test_p6_sabotage import produce
from tests.tally.ground import Journey, named

CONFIG = TallyConfig(keep=False, window_rows=200)


def live(journey: Journey) -> Sources:
    client = {"bootstrap.servers": journey.bank.servers}
    return Sources({"bank": journey.bank.url}, {"ledger": journey.ledger.url}, client, admin_client(client))


def taken(spark: Any, url: str, folder: Path) -> Path:
    said = recorded(url)
    with exported(url, schema="tallymark") as point:
        take(spark, url, "tallymark", point, folder, stations=said)
    return folder


def tallied(spark: Any, sources: Stations, **options: Any) -> TallyReport:
    files = options.pop("files", None)
    return Tally(spark, sources, dataclasses.replace(CONFIG, **options), files=files).run()


def sabotaged(journey: Journey) -> set[tuple[str, str, str, str]]:
    """One of each kind that a stored system can show; gives back what must be found."""
    ledger = journey.ledger.name
    ids = journey.add([f"key-{n % 20}" for n in range(1000)])
    journey.send()
    journey.receive()
    journey.on_ledger("delete from tallymark.inbox where id = %s", ids[10])
    journey.on_bank("delete from tallymark.outbox where id = %s", ids[210])
    journey.on_ledger("update tallymark.inbox set value = 'x' where id = %s", ids[310])
    journey.on_bank("update tallymark.outbox set key = 'x' where id = %s", ids[311])
    journey.on_ledger("create table saved as select * from tallymark.applications where id = %s", ids[410])
    journey.on_ledger("delete from tallymark.applications where id = %s", ids[410])
    # The second effect stands at another place in the log than the message was kept from.
    journey.on_ledger(
        'insert into tallymark.applications (id, source, consumer, topic, partition, "offset", attempt, outcome)'
        " select id, source, consumer, topic, partition, 900000, 1, 'applied' from tallymark.inbox where id = %s",
        ids[510],
    )
    # Applied after one that stands behind it in the log, by a transaction of its own.
    journey.on_ledger(
        "update tallymark.applications set seq = nextval('tallymark.applications_seq'), applied_at = now()"
        " where id = %s",
        ids[610],
    )
    (record,) = [each for each in journey.bank.log() if each.id == ids[710]]
    produce(journey, record.key, record.value, list(record.headers), record.partition)
    # Another outbox writes into the same topic: its positions are its own.
    own = ("ce_id", "ce_source", "tm_position")
    headers = [(name, value) for name, value in record.headers if name not in own]
    headers += [("ce_id", str(new_id()).encode()), ("ce_source", b"/shop"), ("tm_position", b"50")]
    produce(journey, b"a shop's", record.value, headers, record.partition)
    journey.receive()
    return {
        (ids[10], ledger, "lost-in-inbox", "inbox"),
        (ids[210], "", "phantom", "log"),
        (ids[310], ledger, "altered", "inbox"),
        (ids[311], "", "altered", "log"),
        (ids[410], ledger, "unapplied", "apply"),
        (ids[510], ledger, "applied-twice", "apply"),
        (ids[610], ledger, "reordered", "apply"),
        (ids[710], "", "doubled-in-log", "log"),
    }


@pytest.fixture
def archive(journey: Journey, tmp_path: Path) -> ArchiveGround:
    return ArchiveGround(journey.bank.servers, tmp_path / "archive", [journey.bank.topic])


@pytest.mark.full
def test_snapshots_and_the_archive_say_what_the_live_system_says(
    spark: Any, journey: Journey, archive: ArchiveGround, tmp_path: Path
) -> None:
    expected = sabotaged(journey)
    bank = taken(spark, journey.bank.url, tmp_path / "bank")
    archive.archive(spark)
    ledger = taken(spark, journey.ledger.url, tmp_path / "ledger")
    now = tallied(spark, live(journey)).as_json()
    assert (named(now["findings"]), now["by_verdict"]["foreign"]) == (expected, 1)
    files = FindingFiles(tmp_path / "findings")
    then = tallied(spark, SnapshotSources([bank, ledger], archive.folder), files=files).as_json()
    # A snapshot is known by its database's name.
    for each in (*then["waiting"], *now["waiting"]):
        del each["outbox"]
    assert then == now
    assert named(pq.read_table(files.path(journey.bank.outbox_id)).to_pylist()) == expected
    # Where its database is named, what was found is kept beside the outbox too.
    stored = ["--snapshot", f"b={bank}", "--snapshot", str(ledger), "--archive", str(archive.folder)]
    code, _ = journey.tallymark("tally", "run", *stored, "--database", journey.bank.url, "--window", "200")
    assert (code, named(each.finding.as_json() for each in Findings(journey.bank.url).listed())) == (
        1,
        expected,
    )
    with pytest.raises(UsageError, match="none of the snapshots is of outbox another"):
        SnapshotSources([bank, ledger], archive.folder, findings={"another": Findings(journey.bank.url)})

    # What belongs to another system is refused, by name.
    with pytest.raises(UsageError, match="both of database"):
        SnapshotSources([bank, bank], archive.folder)
    with pytest.raises(UsageError, match="none of the snapshots has an outbox"):
        SnapshotSources([ledger], archive.folder)
    with pytest.raises(UsageError, match="there is no archive"):
        SnapshotSources([bank], tmp_path / "nothing")
    other = shutil.copytree(bank, tmp_path / "other")
    said = json.loads((other / "stations.json").read_text())
    said["producer"]["topics"][0][1] = "another"
    (other / "stations.json").write_text(json.dumps(said))
    with pytest.raises(
        Problem, match=f"{other} is of another database: .* speaks of topic {journey.bank.topic}"
    ):
        SnapshotSources([other, ledger], archive.folder)


@pytest.mark.full
def test_what_the_archive_has_not_come_to_is_on_its_way(
    spark: Any, journey: Journey, archive: ArchiveGround, tmp_path: Path
) -> None:
    expected = sabotaged(journey)
    archive.archive(spark)
    files = FindingFiles(tmp_path / "findings")
    tallied(spark, live(journey), files=files)
    as_of_today(spark, journey, files, expected)
    more = journey.add([f"key-{n % 20}" for n in range(100)])
    journey.send()
    journey.receive()
    newer = [
        taken(spark, url, tmp_path / name)
        for name, url in (("bank", journey.bank.url), ("ledger", journey.ledger.url))
    ]
    ahead = tallied(spark, SnapshotSources(newer, archive.folder)).as_json()
    assert ahead["by_verdict"]["pending"] == len(more)
    assert named(ahead["findings"]) == {each for each in expected if each[2] != "unapplied"}


@pytest.mark.full
def test_what_was_written_after_the_outbox_was_copied_is_no_phantom(
    spark: Any, journey: Journey, archive: ArchiveGround, tmp_path: Path
) -> None:
    """In the order that the documents give: outbox, archive, inbox; and the system goes on between them."""
    ids = journey.add([f"key-{n % 20}" for n in range(300)])
    journey.send()
    journey.receive()
    for table in ("inbox", "applications"):
        journey.on_ledger(f"delete from tallymark.{table} where id = %s", ids[10])
    assert tallied(spark, live(journey), keep=True).found == 1
    bank = taken(spark, journey.bank.url, tmp_path / "bank")
    again = [ids[10], "--any-order", "--reason", "lost"]
    assert journey.tallymark("tally", "resend", *journey.databases, *again)[0] == 0
    # The window that was begun goes on, and others follow.
    journey.add([f"key-{n % 20}" for n in range(400)])
    journey.send()
    journey.receive()
    archive.archive(spark)
    ledger = taken(spark, journey.ledger.url, tmp_path / "ledger")
    then = tallied(spark, SnapshotSources([bank, ledger], archive.folder), everything=True)
    assert then.as_json()["findings"] == []
    assert then.as_json()["by_verdict"] == {"delivered": 300}
    # That of the message which is kept under its resend's position alone.
    assert (then.windows, then.differing) == (2, 1)


def as_of_today(
    spark: Any, journey: Journey, files: FindingFiles, expected: set[tuple[str, str, str, str]]
) -> None:
    """The files hold what the table holds, run after run: first and last seen, and what is over."""
    outbox_id = journey.bank.outbox_id
    rows = pq.read_table(files.path(outbox_id)).to_pylist()
    assert named(rows) == expected
    first = {row["id"]: row["first_seen"] for row in rows}
    lost = next(id_ for id_, _, verdict, _ in expected if verdict == "unapplied")
    journey.on_ledger("insert into tallymark.applications select * from saved")
    report = tallied(spark, live(journey), files=files, keep=True)
    assert report.found == len(expected) - 1
    kept = list(files.kept(outbox_id))
    assert {each.finding.id: each.first_seen for each in kept} == first
    assert {(each.finding.id, each.finding.verdict.value) for each in kept if each.over_at is not None} == {
        (lost, "unapplied")
    }
    assert all(each.last_seen > first[each.finding.id] for each in kept if each.over_at is None)
    listed = Findings(journey.bank.url).listed(limit=100)
    assert {each.finding for each in listed} == {each.finding for each in kept if each.over_at is None}
