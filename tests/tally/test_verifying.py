"""What `tally verify` says of certificates after somebody has been at the stations, or at the chain: on real stations."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.broker.reach import admin_client
from tallymark.pipeline.reconcilefiles import FindingFiles
from tallymark.pipeline.reconcilesnapshot import ArchivedLog, SnapshotSources
from tallymark.pipeline.reconcilesources import Sources
from tallymark.store.postgres.findings import Findings
from tallymark.store.postgres.inboxoperators import InboxOperators
from tests.deleting import deleted
from tests.inbox.conftest import MakeInboxGround
from tests.pipeline.archiving import Ground as ArchiveGround
from tests.promises.test_p6_sabotage import produce
from tests.tally.ground import Journey
from tests.tally.test_running import verified
from tests.tally.test_snapshots import archive, live, taken, tallied

__all__ = ["archive"]


def certified(spark: Any, journey: Journey) -> None:
    """Two windows, and a third one that is open."""
    journey.add([f"key-{n % 20}" for n in range(500)])
    journey.send()
    journey.receive()
    assert tallied(spark, live(journey), keep=True).certified == 2
    assert verified(spark, journey).holds


@pytest.mark.full
def test_certificates_outlive_the_consumer_and_its_successor_is_certified(
    spark: Any, journey: Journey, make_inbox_ground: MakeInboxGround
) -> None:
    certified(spark, journey)
    InboxOperators(journey.ledger.url).retire(journey.ledger.name, who="ann", reason="moved")
    found = verified(spark, journey)
    assert (found.wrong, found.recomputed) == ([], 2)
    successor = Journey(journey.bank, make_inbox_ground(like=journey.ledger))
    successor.receive()
    client = {"bootstrap.servers": journey.bank.servers}
    databases = {"ledger": journey.ledger.url, "successor": successor.ledger.url}
    both = Sources({"bank": journey.bank.url}, databases, client, admin_client(client))
    first, second = (tallied(spark, both, keep=True) for _ in range(2))
    assert (first.found, first.windows, first.certified) == (0, 3, 2)
    assert (second.windows, second.certified) == (1, 0)
    # Nor is anybody told to name its database.
    assert not [each for each in (*first.remarks, *second.remarks) if "was not asked" in each]


def test_what_was_deleted_of_the_log_and_of_the_chain_is_named(
    spark: Any, journey: Journey, admin: AdminClient
) -> None:
    certified(spark, journey)
    partition, first = min((record.partition, record.offset) for record in journey.bank.log())
    deleted(admin, TopicPartition(journey.bank.topic, partition, first + 1))
    found = verified(spark, journey)
    assert [(each["window"], each["what"]) for each in found.wrong] == [
        ([0, 200], f"the log has dropped some of it before its time: {journey.bank.topic}/{partition}")
    ]
    assert found.past == 0
    chain_only = ("tally", "verify", "--chain-only", *journey.databases)
    assert journey.tallymark(*chain_only)[0] == 0
    for number in (2, 1):
        journey.on_bank("delete from tallymark.certificates where number = %s", number)
        code, said = journey.tallymark(*chain_only)
        assert (code, [each["certificate"] for each in said["wrong"]]) == (1, [2])


def test_whoever_has_copies_alone_recomputes_certificates_from_them(
    spark: Any, journey: Journey, archive: ArchiveGround, tmp_path: Path
) -> None:
    """An auditor: with yesterday's snapshots and the archive, and of what is live the certificates alone."""
    certified(spark, journey)
    ledger = taken(spark, journey.ledger.url, tmp_path / "ledger")
    journey.on_ledger("delete from tallymark.inbox where position = 250")
    archive.archive(spark)
    copies = [
        "--snapshot",
        str(taken(spark, journey.bank.url, tmp_path / "bank")),
        "--archive",
        str(archive.folder),
    ]
    verify = ("tally", "verify", "--database", journey.bank.url, *copies, "--snapshot")
    # What came to be since, and was certified since, is no business of theirs.
    journey.add([f"key-{n % 20}" for n in range(200)])
    journey.send()
    journey.receive()
    tallied(spark, live(journey), keep=True)
    code, said = journey.tallymark(*verify, str(ledger))
    assert (code, said["recomputed"], said["newer"], said["wrong"]) == (0, 2, 1, []), said
    code, said = journey.tallymark(*verify, str(taken(spark, journey.ledger.url, tmp_path / "later")))
    assert (code, said["recomputed"]) == (1, 2)
    assert {tuple(each["window"]) for each in said["wrong"]} == {(200, 400)}, said

    code, said = journey.tallymark(*verify, str(ledger), "--chain-only")
    assert (code, said["error"]) == (2, "--chain-only reads no data")
    other = shutil.copytree(tmp_path / "bank", tmp_path / "other")
    for name, was, now in (
        ("manifest.json", f'"database": "{database_of(other)}"', '"database": "other"'),
        ("stations.json", journey.bank.outbox_id, "another"),
    ):
        text = (other / name).read_text()
        assert was in text
        (other / name).write_text(text.replace(was, now))
    code, said = journey.tallymark(*verify, str(other))
    assert (code, said["error"]) == (
        2,
        "the certificates of other, of which a snapshot was given, are in none of the databases",
    )


def database_of(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["database"])


@pytest.mark.full
def test_an_archive_that_was_made_before_a_second_copy_closes_nothing_of_it(
    spark: Any, journey: Journey, archive: ArchiveGround, tmp_path: Path
) -> None:
    """The archive is a copy too, and may be the oldest."""
    journey.add([f"key-{n % 20}" for n in range(500)])
    journey.send()
    journey.receive()
    before = datetime.now(UTC)
    archive.archive(spark)
    made_at = ArchivedLog(archive.folder).copied_at
    assert before <= made_at <= datetime.now(UTC)
    twice = next(each for each in journey.bank.log() if ("tm_position", b"250") in each.headers)
    produce(journey, twice.key, twice.value, list(twice.headers), twice.partition)
    journey.receive()
    files = FindingFiles(tmp_path / "findings")
    assert tallied(spark, live(journey), keep=True, files=files).certified == 1
    copies = [
        taken(spark, url, tmp_path / name)
        for name, url in (("bank", journey.bank.url), ("ledger", journey.ledger.url))
    ]
    kept = Findings(journey.bank.url)

    def still_open() -> tuple[int, int, list[str], list[bool]]:
        stored = SnapshotSources(copies, archive.folder, findings={journey.bank.outbox_id: kept})
        report = tallied(spark, stored, keep=True, files=files, everything=True)
        seen = [each.over_at is None for each in files.kept(journey.bank.outbox_id)]
        return report.found, report.certified, [each.finding.id for each in kept.listed()], seen

    assert still_open() == (0, 0, [twice.id], [True])
    # A run that finds nothing new has looked, too.
    archive.archive(spark)
    archive.archive(spark)
    assert ArchivedLog(archive.folder).copied_at > made_at
    assert still_open() == (1, 0, [twice.id], [True])


@pytest.mark.full
def test_copies_that_were_made_before_a_loss_close_nothing_and_certify_nothing_of_it(
    spark: Any, journey: Journey, archive: ArchiveGround, tmp_path: Path
) -> None:
    """They are as old as the oldest of them, and a run that looked later has the last word."""
    journey.add([f"key-{n % 20}" for n in range(500)])
    journey.send()
    journey.receive()
    ledger = taken(spark, journey.ledger.url, tmp_path / "ledger")
    ((lost,),) = journey.on_ledger("delete from tallymark.inbox where position = 250 returning id::text")
    files = FindingFiles(tmp_path / "findings")
    assert tallied(spark, live(journey), keep=True, files=files, everything=True).certified == 1
    archive.archive(spark)
    bank = taken(spark, journey.bank.url, tmp_path / "bank")
    kept = Findings(journey.bank.url)
    copies = SnapshotSources([bank, ledger], archive.folder, findings={journey.bank.outbox_id: kept})
    report = tallied(spark, copies, keep=True, files=files, everything=True)
    assert (report.found, report.certified) == (0, 0)
    assert [each.finding.id for each in kept.listed()] == [lost]
    assert [(each.finding.id, each.over_at) for each in files.kept(journey.bank.outbox_id)] == [(lost, None)]
