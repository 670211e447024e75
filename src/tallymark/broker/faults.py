"""What a Kafka error means to a user: librdkafka's codes become our error tree, with the way out.

Which errors are worth a retry, and what an error means for a batch in flight, is the relay's to decide. Here
only the words are found.
"""

from __future__ import annotations

import re

from tallymark.broker.kafka import KafkaError, KafkaException
from tallymark.errors import (
    AccessDenied,
    OutcomeUnknown,
    Problem,
    SettingsError,
    Stale,
    TallymarkError,
    Unreachable,
    UsageError,
)
from tallymark.observe.masking import mask
from tallymark.settings.keys import closest

_UNREACHABLE = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
_TIMED_OUT = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
    }
)
_AUTHENTICATION = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_AUTHORIZATION = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster (idempotent writes, creating topics)",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id",
}
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_WRONG_INPUT = frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
    }
)

_PROPERTY = re.compile(r'property:? "([^"]+)"')
# To suggest from: what people pass through. librdkafka itself judges which names exist.
_COMMON = (
    "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password",
    "sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions", "sasl.oauthbearer.token.endpoint.url",
    "sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab",
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location",
    "ssl.key.pem", "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
    "client.id", "client.rack", "client.dns.lookup", "broker.address.family", "compression.type", "linger.ms",
    "batch.size", "message.max.bytes", "socket.timeout.ms", "debug",
)  # fmt: skip


def error_of(error: KafkaError | KafkaException) -> KafkaError:
    """The KafkaError inside, whichever of the two was caught."""
    if isinstance(error, KafkaError):
        return error
    inner = error.args[0]
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(inner))


def explain(  # noqa: PLR0911 - one return per meaning reads as the table that it is
    error: KafkaError | KafkaException, *, servers: str = "", doing: str = ""
) -> TallymarkError:
    """The same error in our tree. `servers` are the bootstrap servers; `doing` says what was being tried."""
    cause = error_of(error)
    code, said = cause.code(), mask(cause.str().strip())
    at = f" at {servers}" if servers else ""
    while_doing = f"{doing}: " if doing else ""
    if code in _AUTHENTICATION:
        return AccessDenied(
            f"{while_doing}Kafka{at} refused the login: {_plain(said)}",
            remedy="Check sasl.username, sasl.password and sasl.mechanism under [kafka] client.",
        )
    # A handshake that fails at its first step is told as a failed connection, with OpenSSL's words in it.
    if code == KafkaError._SSL or (code == KafkaError._TRANSPORT and "SSL routines" in said):
        return AccessDenied(
            f"{while_doing}no TLS connection to Kafka{at}: {_plain(said)}",
            remedy="Check ssl.ca.location (and the client's certificate) under [kafka] client.",
        )
    if code in _AUTHORIZATION:
        return AccessDenied(
            f"{while_doing}Kafka denies the right to {_AUTHORIZATION[code]}: {said}",
            remedy="Give this client's user the right (an ACL) and run again.",
        )
    if code in _UNREACHABLE:
        return Unreachable(f"{while_doing}Kafka{at} cannot be reached: {_plain(said)}", remedy=_REACH_REMEDY)
    if code == KafkaError._BAD_MSG:
        return Unreachable(
            f"{while_doing}what answers{at} is not Kafka: {_plain(said)}", remedy=_REACH_REMEDY
        )
    if code in _TIMED_OUT:
        return OutcomeUnknown(
            f"{while_doing}Kafka{at} did not answer in time: {said}", remedy="Look before trying again."
        )
    if code in _FENCED:
        return Stale(f"{while_doing}another producer has taken over this transactional id: {said}")
    if code in _WRONG_INPUT:
        return UsageError(f"{while_doing}Kafka refuses: {said}")
    if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return Problem(
            f"{while_doing}there is no such topic: {said}", remedy="`tallymark topics create` makes it."
        )
    return Problem(f"{while_doing}Kafka says: {said} ({cause.name()})")


_REACH_REMEDY = (
    "Check --bootstrap-servers (TALLYMARK_BOOTSTRAP_SERVERS, [kafka] bootstrap_servers), "
    "and that the brokers are up."
)


def unreachable(servers: str, reason: str) -> Unreachable:
    """No broker of these answers."""
    return Unreachable(f"Kafka at {servers} cannot be reached: {_plain(mask(reason))}", remedy=_REACH_REMEDY)


def hung_up(servers: str) -> Unreachable:
    """Someone listens and closes the connection at once: most often TLS on one side only."""
    return Unreachable(
        f"Kafka at {servers} closes the connection at once",
        remedy="Check that security.protocol under [kafka] client fits the listener (TLS or not, SASL or not).",
    )


def wrong_setting(error: KafkaException) -> SettingsError:
    """The client could not even be made: a pass-through setting that librdkafka does not know or accept."""
    said = re.sub(r"^Failed to create [\w ]+: ", "", mask(error_of(error).str()))
    named = _PROPERTY.search(said)
    near = closest(named.group(1), _COMMON) if named and "No such" in said else None
    return SettingsError(
        f"[kafka] client: {said}",
        remedy=f"Did you mean {near}?"
        if near
        else "Names and values are those of librdkafka's CONFIGURATION.md.",
    )


def _plain(said: str) -> str:
    """librdkafka's prose without thread names, addresses told already, and timings."""
    said = re.sub(r"^(?:\w+://)?[\w.\-\[\]:]+(?:/\w+)?: ", "", said)
    said = re.sub(r"\s*\((?:after|in) \d+ms in state [^)]*\)", "", said)
    said = re.sub(r"Connect to \S+ failed: ", "", said)
    return said.rstrip(".")
