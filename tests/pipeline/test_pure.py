"""The pipeline's pure parts, with tiny literal inputs."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tallymark.apply import watch
from tallymark.errors import Problem, SettingsError, UsageError
from tallymark.inbox.screening import Screen
from tallymark.observe.metrics import Metrics
from tallymark.pipeline.batchsize import BatchSize
from tallymark.pipeline.committing import Commit, Committed
from tallymark.pipeline.effects import NoEffect
from tallymark.pipeline.kafkasource import java_settings, log_of, offsets_json, offsets_of, options
from tallymark.pipeline.loading import combined
from tallymark.pipeline.onebehind import OneBehind
from tallymark.pipeline.patience import Patience
from tallymark.pipeline.progress import Gauges, behind_of, late_s
from tallymark.pipeline.session import SparkPlan
from tests.apply.given import queued


def test_offsets_are_written_and_read_alike() -> None:
    offsets = {("a", 1): 7, ("a", 0): 5, ("b", 0): 0}
    assert offsets_json(offsets) == '{"a": {"0": 5, "1": 7}, "b": {"0": 0}}'
    assert offsets_of(offsets_json(offsets)) == offsets


def test_who_commits_remembers_no_slow_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers ask for them; here nobody does, and they would pile up for as long as a run lasts."""
    monkeypatch.setattr(watch, "SLOW_S", -1.0)
    now = datetime.now(UTC)
    commit = Commit(NoEffect(["a"]), Screen(lambda _: True, now - timedelta(days=1), now), run="r")
    hung = queued({}, topic="a", key=b"alice")
    for _ in range(2):
        commit.watch.began([hung], timeout_s=5.0)
        commit.watch.ended()
        assert commit.watch.slow_keys() == set()
        commit.suspect([hung], "it hung")


def test_a_batchs_ends_come_from_sparks_own_log() -> None:
    assert log_of('v1\n{"batchWatermarkMs":0}\n{"a":{"0":16,"1":4}}') == {("a", 0): 16, ("a", 1): 4}
    with pytest.raises(ValueError, match="version 'v9'"):
        log_of('v9\n{}\n{"a":{"0":16}}')


def test_a_reader_is_always_safe() -> None:
    found = options({"bootstrap.servers": "h:1", "isolation.level": "read_uncommitted"})
    assert found["failOnDataLoss"] == "true"
    assert found["includeHeaders"] == "true"
    assert found["kafka.isolation.level"] == "read_committed"
    assert found["kafka.bootstrap.servers"] == "h:1"


def test_librdkafkas_settings_in_javas_words() -> None:
    found = java_settings(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.username": "u",
            "sasl.password": 'p"\\',
            "ssl.ca.location": "/ca.pem",
            "linger.ms": "5",
        }
    )
    assert found == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="u" password="p\\"\\\\";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }
    with pytest.raises(SettingsError, match="GSSAPI"):
        java_settings({"sasl.mechanism": "GSSAPI", "sasl.username": "u"})


def test_a_keystore_in_javas_words() -> None:
    given = {"security.protocol": "ssl", "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "p"}
    assert java_settings({**given, "ssl.key.password": "q", "ssl.ca.pem": "CA"}) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "CA",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/k.p12",
        "ssl.keystore.password": "p",
        "ssl.key.password": "q",
    }
    assert java_settings({"ssl.certificate.pem": "C", "ssl.key.pem": "K", "ssl.key.password": "q"}) == {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "C",
        "ssl.keystore.key": "K",
        "ssl.key.password": "q",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.certificate.location", "/c.pem"),
        ("ssl.key.location", "/k.pem"),
        ("ssl.key.pem", "K"),
        ("ssl.keystore.password", "hidden"),
        ("ssl.ca.location", "probe"),
        ("ssl.cipher.suites", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("ssl.crl.location", "/crl.pem"),
        ("sasl.oauthbearer.config", "hidden"),
        ("sasl.kerberos.keytab", "/k.keytab"),
        ("enable.ssl.certificate.verification", "false"),
        ("enable.sasl.oauthbearer.unsecure.jwt", "true"),
    ],
)
def test_no_setting_of_security_is_left_out_in_silence(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}.* cannot be passed to Spark") as caught:
        java_settings({"bootstrap.servers": "h:1", name: value})
    assert caught.value.remedy
    assert "hidden" not in caught.value.sentence


def test_what_java_does_anyway_is_left_out() -> None:
    assert java_settings({"enable.ssl.certificate.verification": "True", "linger.ms": "5"}) == {}


def test_what_tasks_report_is_added_up() -> None:
    found = combined(
        "staging",
        [
            ("t1", "a", 0, 3, f"{5:032x}", f"{9:032x}", 100),
            ("t1", "a", 1, 1, f"{5:032x}", f"{9:032x}", 90),
            ("t2", "a", 0, 2, None, None, -1),
        ],
    )
    assert found.table == "staging"
    assert found.tokens == {"t1": 4, "t2": 2}
    assert found.places == {("a", 0): 5, ("a", 1): 1}
    assert (found.low, found.high, found.rows) == (5, 9, 6)
    assert found.logged_ms == {("a", 0): 100, ("a", 1): 90}


def test_lag_is_what_lies_behind_what_is_committed() -> None:
    committed, latest = {("a", 0): 5, ("a", 2): 7, ("a", 3): 9}, {("a", 0): 8, ("a", 1): 2, ("a", 2): 7}
    assert behind_of(committed, latest) == {("a", 0): 3, ("a", 1): 2}


def test_what_is_loaded_and_not_committed_is_still_behind() -> None:
    """Spark tells of a trigger once its batch is loaded; on a topic that stands still the commit has the last word."""
    metrics = Metrics()
    gauges = Gauges(metrics, "ledger")

    def told(name: str) -> float:
        ((value, _),) = re.findall(rf'{name}{{consumer="ledger"}} (\d+(\.\d+)?)', metrics.render().decode())
        return float(value)

    gauges.begin({("a", 0): 100})
    trigger = {"endOffset": {"a": {"0": 160}}, "latestOffset": {"a": {"0": 160}}}
    gauges.progressed({"sources": [trigger]})
    assert told("tallymark_inbox_lag_messages") == 60
    gauges.note(Committed(read=50, load_s=0.5, commit_s=0.25, ends={("a", 0): 160}))
    assert told("tallymark_inbox_lag_messages") == 0
    assert told("tallymark_inbox_lag_seconds") == 0
    assert told("tallymark_ingest_messages_per_second") == 100


def test_how_late_is_told_by_what_is_behind() -> None:
    """The partition that has caught up is as old as its last message, and that says nothing."""
    kept = {("a", 0): 7_000, ("a", 1): 4_000, ("a", 2): 1_000}
    assert late_s({}, kept, now=10.0) == 0
    assert late_s({("a", 0): 5, ("a", 1): 1}, kept, now=10.0) == 6
    assert late_s({("a", 9): 5}, kept, now=10.0) is None


def test_one_behind() -> None:
    """Each after the one before it; what failed is told, and nothing is done after it until somebody begins anew."""
    done: list[int] = []
    first, line = threading.Event(), OneBehind("tests")

    def fail() -> None:
        raise Problem("no")

    def wait() -> None:
        assert first.wait(10)
        done.append(1)

    line.hand_in(wait)
    line.refuse_failed()
    assert done == [], "it is under way"
    first.set()
    line.hand_in(lambda: done.append(2))
    line.settle()
    assert done == [1, 2]
    line.hand_in(fail)
    for _ in range(2):
        with pytest.raises(Problem):
            line.hand_in(lambda: done.append(3))
    with pytest.raises(Problem):
        line.refuse_failed()
    line.begin_anew()
    line.hand_in(lambda: done.append(4))
    assert line.finish() is None
    assert done == [1, 2, 4]


def test_one_behind_beside_its_pieces() -> None:
    """What can wait is done where nothing else is; what hangs is left behind, and whoever waits for it is told."""
    done: list[int] = []
    hung, line = threading.Event(), OneBehind("tests")
    line.if_idle(lambda: done.append(1))
    line.settle()
    line.hand_in(lambda: hung.wait(20))
    line.if_idle(lambda: done.append(3))
    assert not line.is_over(0.01)
    line.leave_behind(Problem("it hangs"))
    assert line.is_over(0.01)
    with pytest.raises(Problem, match="it hangs"):
        line.hand_in(lambda: done.append(4))
    with pytest.raises(Problem, match="it hangs"):
        line.if_idle(lambda: done.append(5))
    hung.set()
    line.begin_anew()
    line.hand_in(lambda: done.append(6))
    line.settle()
    assert done == [1, 6]


def test_patience_counts_from_the_first_failure() -> None:
    """However long a run went well before, idle or not."""
    now = 1_000.0
    patience = Patience(300, lambda: now)
    assert patience.failed(healthy=True) == 1
    now += 200
    assert patience.failed(healthy=False) == 2
    now += 200
    assert patience.failed(healthy=False) is None
    assert patience.failed(healthy=True) == 1, "a query got through meanwhile"


def test_batches_get_smaller_where_commits_lose_their_session() -> None:
    """Once may be an accident; what was learned is kept, and there is a floor."""
    size = BatchSize(10_000, floor=2_000)
    assert (size.lost(), size.offsets) == (False, 10_000)
    size.committed()
    assert (size.lost(), size.offsets) == (False, 10_000), "not in a row"
    assert (size.lost(), size.offsets) == (True, 5_000)
    assert (size.lost(), size.offsets) == (True, 2_500)
    size.committed()
    assert size.offsets == 2_500
    assert [size.lost() for _ in range(4)] == [False, True, False, False]
    assert size.offsets == 2_000
    small = BatchSize(60, floor=2_000)
    assert [small.lost() for _ in range(3)] == [False] * 3
    assert small.offsets == 60


def test_batches_go_by_how_long_handlers_take() -> None:
    """To what fits into five seconds, by what the last one took; to no fewer than Spark is worth."""
    size = BatchSize(10_000, floor=1_000)
    assert (size.took(10_000, 5.0), size.offsets) == (False, 10_000)
    assert (size.took(10_000, 20.0), size.offsets) == (True, 2_500)
    assert (size.took(2_500, 3.0), size.offsets) == (False, 2_500), "another size is another query"
    assert (size.took(3, 60.0), size.offsets) == (True, 100)
    assert (size.took(100, 60.0), size.offsets) == (False, 100)
    assert [size.lost() for _ in range(3)] == [False] * 3
    few = BatchSize(20, floor=1_000)
    assert (few.took(20, 60.0), few.offsets) == (False, 20)


def test_one_slow_moment_does_not_make_batches_small_for_ever() -> None:
    """A row lock, a disk: weeks later the run was still at 100 a second. Few messages tell little of how many fit."""
    size = BatchSize(10_000, floor=1_000)
    assert (size.took(5, 6.0), size.offsets) == (True, 100)
    assert (size.took(5, 0.01), size.offsets) == (False, 100), "of so few nobody can tell"
    assert (size.took(60, 0.5), size.offsets) == (True, 300), "no batch need be full"
    assert (size.took(300, 0.5), size.offsets) == (True, 1_500)
    assert (size.took(1_500, 0.2), size.offsets) == (True, 10_000)
    assert (size.took(10_000, 0.2), size.offsets) == (False, 10_000)


def test_batches_begin_with_few_and_grow_no_further_than_what_losses_taught() -> None:
    """The first one cannot be stopped either: ten thousand calls of half a second are more than an hour."""
    size = BatchSize(10_000, floor=1_000, first=500)
    assert size.offsets == 500
    assert (size.took(500, 0.3), size.offsets) == (True, 4_166)
    assert [size.lost() for _ in range(2)] == [False, True]
    assert (size.took(2_000, 0.1), size.offsets) == (False, 2_083)
    assert BatchSize(20, floor=1_000, first=500).offsets == 20


def test_what_batches_came_to_is_added_up() -> None:
    one = Committed(
        read=3, kept=2, load_s=0.5, logged_ms={("a", 0): 1, ("a", 1): 2}, ends={("a", 0): 5, ("a", 1): 6}
    )
    both = one + Committed(read=4, kept=4, load_s=0.25, logged_ms={("a", 1): 3}, ends={("a", 1): 9})
    assert (both.read, both.kept, both.load_s, both.logged_ms) == (7, 6, 0.75, {("a", 0): 1, ("a", 1): 3})
    assert both.ends == {("a", 0): 5, ("a", 1): 9}
    assert not {"logged_ms", "ends"} & both.counts().keys()


def test_speculation_is_refused() -> None:
    with pytest.raises(UsageError, match="runs a task twice at once"):
        SparkPlan("x", conf={"spark.speculation": "true"}).settings()
    found = SparkPlan(
        "x", conf={"spark.speculation": "false"}, jars=(Path("a.jar"), Path("b.jar"))
    ).settings()
    assert found["spark.speculation"] == "false"
    assert found["spark.jars"] == "a.jar,b.jar"
