"""What can be set, with its type, its default and what it means. Frozen; secrets are SecretStr.

A field's description is its documentation: `tallymark config` and the reference page read it from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from tallymark.lifecycle import Mode, Role
from tallymark.settings.quantity import ByteSize, Duration

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TOPIC_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,100}")

# Set by Tallymark for each client it makes: another value would break a promise without a word.
RESERVED: Mapping[str, str] = {
    "bootstrap.servers": "it is kafka.bootstrap_servers",
    "metadata.broker.list": "it is kafka.bootstrap_servers",
    "acks": "the relay needs acks=all",
    "request.required.acks": "the relay needs acks=all",
    "enable.idempotence": "the relay needs an idempotent producer",
    "enable.gapless.guarantee": "the relay decides what happens to a message that fails",
    "transactional.id": "it is derived from the outbox and the lane",
    "partitioner": "keys are placed by murmur2, as in Java",
    "group.id": "it is the consumer's name",
    "enable.auto.commit": "positions live in the database",
    "enable.auto.offset.store": "positions live in the database",
    "auto.offset.reset": "a position that the log no longer has must be seen, not skipped",
    "isolation.level": "only committed messages are read",
}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


def _servers(value: object) -> object:
    """One string as librdkafka wants it; a list is welcome too."""
    if isinstance(value, list):
        value = ",".join(str(each) for each in value)
    if not isinstance(value, str):
        return value
    servers = [each.strip() for each in value.split(",") if each.strip()]
    if not servers:
        raise ValueError("must name at least one host:port")
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"must be host:port, or several with commas between: {server!r} is not")
    return ",".join(servers)


def _texts(value: object) -> object:
    """Switches and numbers as librdkafka spells them."""
    if not isinstance(value, Mapping):
        return value
    plain = bool | int | float
    return {name: str(item).lower() if isinstance(item, plain) else item for name, item in value.items()}


class KafkaSettings(_Section):
    """Where Kafka is, and how a client gets in."""

    bootstrap_servers: Annotated[str, BeforeValidator(_servers)] | None = Field(
        default=None, description="host:port of one or more brokers, with commas between"
    )
    client: Annotated[dict[str, SecretStr], BeforeValidator(_texts)] = Field(
        default_factory=dict,
        description="passed to every client, under librdkafka's names (security.protocol, sasl.…, ssl.…)",
    )


class DatabaseSettings(_Section):
    """One named database."""

    url: SecretStr = Field(
        description="postgresql://user:password@host:port/name, a libpq connection string, or sqlite:///path"
    )
    role: Role = Field(
        default=Role.BOTH, description="which side of the journey lives in it: producer, consumer or both"
    )

    @field_validator("url")
    @classmethod
    def _looks_like_one(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        if not is_address(text):
            raise ValueError("must be a postgresql:// URL, a libpq connection string, or sqlite:///path")
        return url


class RelaySettings(_Section):
    """The relay: from the outbox to Kafka."""

    mode: Mode = Field(
        default=Mode.TRANSACTIONAL,
        description="transactional: once in the log; callback, sync: at least once",
    )
    owner: str | None = Field(
        default=None, description="this relay's name in status; default: host and process"
    )
    lease_seconds: float = Field(
        default=10, gt=0, description="a lane is free this long after its owner's last sign of life"
    )
    batch_messages: int = Field(default=50_000, ge=1, le=1_000_000, description="messages per batch at most")
    batch_bytes: ByteSize = Field(default=32 * 2**20, ge=1024, description="bytes per batch at most")
    poll_ms: float = Field(default=5, gt=0, description="how often an idle relay looks for new messages")
    give_up_after: Duration | None = Field(
        default=None, description="park what could not be sent for this long; default: never give up"
    )
    on_park: Literal["hold-key", "skip"] = Field(
        default="hold-key", description="whether later messages of a parked key wait behind it"
    )
    retention: Duration = Field(
        default=timedelta(days=7), description="how long sent messages stay in the outbox"
    )
    dedup_retention: Duration | None = Field(
        default=None, description="how long names given by dedup_key= are remembered; default: for ever"
    )
    lanes: int | None = Field(
        default=None, ge=1, le=256, description="refuse an outbox with another number of lanes; default: any"
    )
    end_floors_after: Duration | None = Field(
        default=None,
        description="end writers that idle in a transaction for this long; default: only name them",
    )
    notify: bool = Field(default=False, description="wake by NOTIFY too (slows many concurrent writers)")
    accept_risk: tuple[str, ...] = Field(
        default=(), description="topic settings whose safety rule is switched off"
    )

    @field_validator("accept_risk", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(each.strip() for each in value.split(",") if each.strip())
        return value


class InboxSettings(_Section):
    """The inbox: from Kafka to the consumer's database."""

    lease_seconds: float = Field(
        default=10, gt=0, description="a process counts as gone this long after its last sign of life"
    )
    batch_messages: int = Field(default=10_000, ge=1, le=1_000_000, description="messages per batch at most")
    batch_bytes: ByteSize = Field(default=8 * 2**20, ge=1024, description="bytes per batch at most")
    session_timeout: Duration = Field(
        default=timedelta(seconds=45), description="Kafka gives our partitions to others after this silence"
    )
    max_poll_interval: Duration = Field(
        default=timedelta(minutes=5),
        description="Kafka gives our partitions to others when we have not polled for this long",
    )
    retention: Duration = Field(
        default=timedelta(days=7),
        description="how long kept messages and saved ids stay at least; longer while the log has them",
    )

    @field_validator("max_poll_interval")
    @classmethod
    def _outlasts_the_session(cls, interval: timedelta, info: ValidationInfo) -> timedelta:
        session = info.data.get("session_timeout")
        if session is not None and interval < session:
            raise ValueError(f"must not be shorter than inbox.session_timeout ({session.total_seconds():g}s)")
        return interval


class Settings(_Section):
    """Everything that can be set."""

    kafka: KafkaSettings = KafkaSettings()
    database: SecretStr | None = Field(
        default=None, description="the database to work on: a name under [databases], or a URL"
    )
    databases: dict[str, DatabaseSettings] = Field(default_factory=dict, description="named databases")
    schema_name: str = Field(
        default="tallymark", description="the PostgreSQL schema that holds Tallymark's tables"
    )
    topic_prefix: str = Field(
        default="tallymark.", description="put before the names of Tallymark's own topics"
    )
    relay: RelaySettings = RelaySettings()
    inbox: InboxSettings = InboxSettings()

    @field_validator("schema_name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not _IDENTIFIER.fullmatch(name):
            raise ValueError(
                "must be a plain name: lower-case letters, digits and _, at most 63, no digit first"
            )
        if name.startswith("pg_") or name in {"public", "information_schema"}:
            raise ValueError(f"must be a schema of Tallymark's own, not {name}")
        return name

    @field_validator("topic_prefix")
    @classmethod
    def _topic_name(cls, prefix: str) -> str:
        if not _TOPIC_PREFIX.fullmatch(prefix):
            raise ValueError("must be made of letters, digits, '.', '_' and '-', at most 100")
        return prefix


def is_address(text: str) -> bool:
    """Whether this is a URL or a connection string, rather than the name of a database in the settings."""
    if "://" in text:
        return text.startswith(("postgresql://", "postgres://", "sqlite:///"))
    return bool(re.search(r"\b(host|hostaddr|dbname|service|port|user)\s*=", text))
