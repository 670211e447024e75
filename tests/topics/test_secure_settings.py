"""Someone's own secured Kafka: SASL/SCRAM over TLS, reached by pass-through settings in tallymark.toml."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tallymark.broker.kafka import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tallymark.local.cluster import LocalCluster
from tallymark.local.home import Listener
from tests.cli.conftest import Run

USER, PASSWORD = "teller", "c0rrect-horse"


@dataclass(frozen=True)
class Secured:
    """Where it listens, and the certificate to trust."""

    servers: str
    certificate: Path


def _self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and a PEM keystore with its key for the broker."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tallymark test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(public)
    (folder / "broker.pem").write_bytes(private + public)
    return folder / "ca.pem", folder / "broker.pem"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certificate, keystore = _self_signed(folder)
    listener = Listener(
        "SECURE",
        "SASL_SSL",
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        },
    )
    cluster = LocalCluster(folder / "home", brokers=1, postgres=0, listeners=[listener])
    cluster.up()
    try:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([user]).values():
            future.result(30)
        yield Secured(cluster.listener_servers("SECURE"), certificate)
    finally:
        cluster.down(wipe=True)


def settings(folder: Path, secured: Secured, *, password: str = PASSWORD, trusted: bool = True) -> None:
    (folder / "tallymark.toml").write_text(
        f"""
[kafka]
bootstrap_servers = "{secured.servers}"

[kafka.client]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "{USER}"
"sasl.password" = "{password}"
"""
        + (f'"ssl.ca.location" = "{secured.certificate}"\n' if trusted else "")
    )


def test_reached_through_pass_through_settings(run: Run, tmp_path: Path, secured: Secured) -> None:
    settings(tmp_path, secured)
    risks = ("--accept-risk", "replication.factor", "--accept-risk", "min.insync.replicas")
    made = run("topics", "create", "t", "--partitions", "1", "--replication-factor", "1", *risks, "--json")
    assert (made.code, made.json["topics"][0]["created"]) == (0, True)


def test_a_wrong_password_is_told_at_once_and_not_repeated(
    run: Run, tmp_path: Path, secured: Secured
) -> None:
    settings(tmp_path, secured, password="wr0ng-horse")
    started = time.monotonic()
    ran = run("topics", "check")
    assert time.monotonic() - started < 5
    assert ran.code == 3
    assert f"Kafka at {secured.servers} refused the login" in ran.err
    assert "sasl.password" in ran.err
    assert len(ran.err.splitlines()) == 2
    assert "wr0ng-horse" not in ran.out + ran.err


def test_a_certificate_that_nobody_vouches_for(run: Run, tmp_path: Path, secured: Secured) -> None:
    settings(tmp_path, secured, trusted=False)
    ran = run("topics", "check")
    assert ran.code == 3
    assert "no TLS connection to Kafka" in ran.err
    assert "ssl.ca.location" in ran.err
    assert PASSWORD not in ran.out + ran.err


def test_a_plain_client_at_a_tls_listener(run: Run, secured: Secured) -> None:
    ran = run("topics", "check", "--bootstrap-servers", secured.servers)
    assert ran.code == 3
    assert "security.protocol" in ran.err
