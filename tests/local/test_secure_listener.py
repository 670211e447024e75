"""A real SASL/SCRAM listener over TLS on a local broker, reached with plain client settings."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tallymark.broker.kafka import (
    AdminClient,
    KafkaError,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tallymark.local.cluster import LocalCluster
from tallymark.local.home import Listener

ClientSettings = dict[str, Any]
USER, PASSWORD = "alice", "correct-horse"


def make_certificate() -> tuple[str, str]:
    """A self-signed certificate for loopback, and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local broker")])
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
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return certificate.public_bytes(pem).decode(), private.decode()


@pytest.fixture(scope="module")
def secure() -> Iterator[ClientSettings]:
    """The client settings that are let in."""
    certificate, key = make_certificate()
    listener = Listener(
        "SECURE",
        "SASL_SSL",
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        },
    )
    home = Path(tempfile.mkdtemp(prefix="tallymark-secure-"))
    cluster = LocalCluster(home, brokers=1, postgres=0, listeners=[listener])
    try:
        cluster.up()
        plain = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        alteration = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        plain.alter_user_scram_credentials([alteration])[USER].result(30)
        (home / "ca.pem").write_text(certificate)
        yield {
            "bootstrap.servers": cluster.listener_servers("SECURE"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(home / "ca.pem"),
        }
    finally:
        cluster.down(wipe=True)
        shutil.rmtree(home)


def errors_until(settings: ClientSettings, code: int, within: float) -> list[KafkaError]:
    """What a client is told while it tries to get in, until `code` was among it."""
    told: list[KafkaError] = []
    quiet: ClientSettings = {"error_cb": told.append, "log_level": 0}
    client = AdminClient(settings | quiet)
    deadline = time.monotonic() + within
    while time.monotonic() < deadline and not any(error.code() == code for error in told):
        client.poll(0.1)
    return told


def test_the_right_password_works(secure: ClientSettings) -> None:
    admin = AdminClient(secure)
    admin.create_topics([NewTopic("secured", 1, 1)])["secured"].result(30)
    assert "secured" in admin.list_topics(timeout=30).topics


def test_the_wrong_password_is_told_quickly(secure: ClientSettings) -> None:
    told = errors_until({**secure, "sasl.password": "wrong"}, KafkaError._AUTHENTICATION, within=15)
    assert told, "the client was told nothing"
    assert "Authentication failed" in told[0].str()
    assert "wrong" not in told[0].str()


def test_an_unknown_certificate_is_not_trusted(secure: ClientSettings, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_text(make_certificate()[0])
    told = errors_until(
        {**secure, "ssl.ca.location": str(tmp_path / "other.pem")}, KafkaError._SSL, within=15
    )
    assert told, "the client was told nothing"
    assert told[0].code() == KafkaError._SSL
