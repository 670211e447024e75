"""Someone's own secured Kafka: SASL/SCRAM over TLS, reached by pass-through settings in tallymark.toml."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cli.conftest import Run
from tests.secured import PASSWORD, Secured


def test_reached_through_pass_through_settings(run: Run, tmp_path: Path, secured: Secured) -> None:
    secured.configure(tmp_path)
    risks = ("--accept-risk", "replication.factor", "--accept-risk", "min.insync.replicas")
    made = run("topics", "create", "t", "--partitions", "1", "--replication-factor", "1", *risks, "--json")
    assert (made.code, made.json["topics"][0]["created"]) == (0, True)


def test_a_wrong_password_is_told_at_once_and_not_repeated(
    run: Run, tmp_path: Path, secured: Secured
) -> None:
    secured.configure(tmp_path, password="wr0ng-horse")
    started = time.monotonic()
    ran = run("topics", "check")
    assert time.monotonic() - started < 9, "not at the end of its patience"
    assert ran.code == 3
    assert f"Kafka at {secured.servers} refused the login" in ran.err
    assert "sasl.password" in ran.err
    assert len(ran.err.splitlines()) == 2
    assert "wr0ng-horse" not in ran.out + ran.err


def test_a_certificate_that_nobody_vouches_for(run: Run, tmp_path: Path, secured: Secured) -> None:
    secured.configure(tmp_path, trusted=False)
    ran = run("topics", "check")
    assert ran.code == 3
    assert "no TLS connection to Kafka" in ran.err
    assert "ssl.ca.location" in ran.err
    assert PASSWORD not in ran.out + ran.err


def test_a_plain_client_at_a_tls_listener(run: Run, secured: Secured) -> None:
    ran = run("topics", "check", "--bootstrap-servers", secured.servers)
    assert ran.code == 3
    assert "security.protocol" in ran.err
