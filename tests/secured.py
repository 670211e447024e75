"""Someone's own secured Kafka: one broker with a SASL/SCRAM listener over TLS, and rights that can be taken away.

    def test_…(secured: Secured) -> None:
        client = secured.client(password="wrong")

Everything is allowed that no ACL names; the plain listener, which tests do not give to what they test, is an
administrator's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tallymark.local.cluster import LocalCluster
from tallymark.local.home import Listener
from tests.waiting import wait_for

USER, PASSWORD = "teller", "c0rrect-horse"


@dataclass(frozen=True)
class Secured:
    """Where it listens, and the certificate to trust."""

    servers: str
    certificate: Path
    # Without TLS or a login, for the test itself: an administrator's.
    plain: str
    admin: AdminClient

    def client(
        self, *, password: str = PASSWORD, certificate: Path | None = None, trusted: bool = True
    ) -> dict[str, str]:
        """The client settings that are let in, or some that are not."""
        trust = {"ssl.ca.location": str(certificate or self.certificate)} if trusted else {}
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": password,
            **trust,
        }

    def configure(self, folder: Path, *, password: str = PASSWORD, trusted: bool = True) -> None:
        """A tallymark.toml in this folder that reaches it by pass-through settings."""
        client = self.client(password=password, trusted=trusted)
        lines = [f'"{name}" = "{value}"' for name, value in client.items()]
        (folder / "tallymark.toml").write_text(
            "\n".join([f'[kafka]\nbootstrap_servers = "{self.servers}"\n\n[kafka.client]', *lines, ""])
        )

    @contextmanager
    def denied(self, kind: ResourceType, prefix: str, *but: AclOperation) -> Iterator[None]:
        """Our user may do nothing with what is named so, but these."""
        pattern = (kind, prefix, ResourcePatternType.PREFIXED, f"User:{USER}", "*")
        # Where there is a rule for a thing, what none allows is denied.
        rules = [(each, AclPermissionType.ALLOW) for each in but] or [
            (AclOperation.ALL, AclPermissionType.DENY)
        ]
        ours = AclBindingFilter(*pattern, AclOperation.ANY, AclPermissionType.ANY)

        def rules_known() -> int:
            """By the broker's own authorizer, which learns of them after the controller has answered."""
            return len(self.admin.describe_acls(ours, request_timeout=30).result(30))

        for made in self.admin.create_acls([AclBinding(*pattern, *rule) for rule in rules]).values():
            made.result(30)
        wait_for(lambda: rules_known() == len(rules), what="the broker knows the rules")
        try:
            yield
        finally:
            filters = [AclBindingFilter(*pattern, *rule) for rule in rules]
            for gone in self.admin.delete_acls(filters).values():
                gone.result(30)
            wait_for(lambda: rules_known() == 0, what="the broker has forgotten the rules")


def self_signed() -> tuple[str, str]:
    """A certificate for loopback, and its key, in PEM."""
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
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), private.decode()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One broker of its own for the whole run."""
    folder = tmp_path_factory.mktemp("secured")
    certificate, key = self_signed()
    (folder / "ca.pem").write_text(certificate)
    listener = Listener(
        "SECURE",
        "SASL_SSL",
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        },
    )
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    cluster = LocalCluster(
        folder / "home", brokers=1, postgres=0, listeners=[listener], broker_settings=rights, brief=True
    )
    cluster.up()
    try:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for made in admin.alter_user_scram_credentials([user]).values():
            made.result(30)
        yield Secured(cluster.listener_servers("SECURE"), folder / "ca.pem", cluster.bootstrap_servers, admin)
    finally:
        cluster.down(wipe=True)
