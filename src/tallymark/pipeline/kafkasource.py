"""Kafka as Spark reads it: the safe options (rules 65-71), the user's own settings in Java's words, offsets as JSON.

Pure, but for the two readers at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tallymark.errors import Problem, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[str, int]
Offsets = Mapping[Place, int]

# Spark says -2 for earliest and -1 for latest: neither is ever ours to say.
_SAFE = {
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
}
_SAME = (
    "bootstrap.servers",
    "sasl.mechanism",
    "sasl.kerberos.service.name",
    "client.id",
    "client.rack",
    "request.timeout.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
)
# What a connection's safety rests on. Such a setting is passed on, or refused: it is never left out in silence.
_SECURITY = ("ssl.", "ssl_", "sasl.", "enable.ssl.", "enable.sasl.")
_REMEDY = "take {name} out of kafka.client for this job, or give Java's equal by other means"
_REMEDIES = {
    "enable.ssl.certificate.verification": "trust the brokers' certificate with ssl.ca.location or ssl.ca.pem",
    "ssl.certificate.location": "give ssl.certificate.pem and ssl.key.pem: Java wants key and certificate as text",
    "ssl.key.location": "give ssl.certificate.pem and ssl.key.pem: Java wants key and certificate as text",
    "ssl.key.pem": "give its certificate with it, as ssl.certificate.pem",
    "ssl.keystore.password": "give its keystore with it, as ssl.keystore.location",
}
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_settings(client: Mapping[str, str]) -> dict[str, str]:
    """The settings of a librdkafka client as a Java client takes them.

    What has no equal there is left out; SettingsError where that would be a setting of its security.
    """
    given = dict(client)
    found: dict[str, str] = {}
    if mechanisms := given.pop("sasl.mechanisms", None):
        given.setdefault("sasl.mechanism", mechanisms)
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if user is not None:
        mechanism = given.get("sasl.mechanism", "PLAIN").upper()
        if mechanism not in _LOGIN:
            raise SettingsError(
                f"sasl.mechanism {mechanism} cannot be passed to Spark",
                remedy=f"use one of {', '.join(_LOGIN)}",
            )
        found["sasl.jaas.config"] = (
            f'{_LOGIN[mechanism]} required username="{_quoted(user)}" password="{_quoted(password or "")}";'
        )
    if protocol := given.pop("security.protocol", None):
        found["security.protocol"] = protocol.upper()
    found |= _trusted(given) | _own_certificate(given)
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        given["ssl.endpoint.identification.algorithm"] = ""
    if given.get("enable.ssl.certificate.verification", "").lower() == "true":
        del given["enable.ssl.certificate.verification"]  # Java always does
    for name in sorted(given):
        if name.startswith(_SECURITY) and name not in _SAME:
            raise SettingsError(
                f"{name} cannot be passed to Spark", remedy=_REMEDIES.get(name, _REMEDY).format(name=name)
            )
    return found | {name: value for name, value in given.items() if name in _SAME}


def _trusted(given: dict[str, str]) -> dict[str, str]:
    """Whose certificates are trusted."""
    if text := given.pop("ssl.ca.pem", None):
        given.pop("ssl.ca.location", None)  # librdkafka takes the text, too
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}
    path = given.pop("ssl.ca.location", None)
    if path == "probe":
        raise SettingsError(
            "ssl.ca.location probe cannot be passed to Spark", remedy="name the file of certificates to trust"
        )
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": path} if path else {}


def _own_certificate(given: dict[str, str]) -> dict[str, str]:
    """How we are known by a certificate of our own: as text, or in a keystore."""
    if certificate := given.pop("ssl.certificate.pem", None):
        key = given.pop("ssl.key.pem", None)
        return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate} | (
            {"ssl.keystore.key": key} if key else {}
        )
    if path := given.pop("ssl.keystore.location", None):
        password = given.pop("ssl.keystore.password", None)
        return {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": path} | (
            {"ssl.keystore.password": password} if password is not None else {}
        )
    return {}


def options(client: Mapping[str, str]) -> dict[str, str]:
    """What every reader of ours is given."""
    return _SAFE | {f"kafka.{name}": value for name, value in java_settings(client).items()}


def offsets_json(offsets: Offsets) -> str:
    """Offsets in the form that Spark takes and writes: {"topic": {"0": 12}}."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)


def offsets_of(text: str) -> dict[Place, int]:
    """The same, read."""
    return {
        (topic, int(partition)): offset
        for topic, found in json.loads(text).items()
        for partition, offset in found.items()
    }


def log_of(lines: str) -> dict[Place, int]:
    """The ends of a micro-batch, from Spark's own `offsets/N`: a version, a line of settings, one line per source."""
    version, _, *sources = lines.splitlines()
    if version != "v1" or len(sources) != 1:
        raise ValueError(f"an offset log of version {version!r} with {len(sources)} sources is not known")
    return offsets_of(sources[0])


def stream(
    spark: SparkSession,
    client: Mapping[str, str],
    starts: Offsets,
    *,
    max_offsets: int | None = None,
    min_partitions: int | None = None,
) -> DataFrame:
    """A stream of all partitions of the topics that `starts` names, each from its offset on."""
    reader = spark.readStream.format("kafka").options(**options(client))
    reader = reader.option("subscribe", ",".join(sorted({topic for topic, _ in starts})))
    reader = reader.option("startingOffsets", offsets_json(starts))
    if max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets)
    if min_partitions is not None:
        reader = reader.option("minPartitions", min_partitions)
    return reader.load()


def batch(
    spark: SparkSession,
    client: Mapping[str, str],
    starts: Offsets,
    ends: Offsets,
    *,
    min_partitions: int | None = None,
) -> DataFrame:
    """What lies between these offsets, and nothing else: the same today and tomorrow (rule 68).

    Of the partitions that `starts` names; `ends` may name more.
    """
    assigned: dict[str, list[int]] = {}
    for (topic, partition), start in sorted(starts.items()):
        # One of Spark's readers would read nothing of it, and say nothing; the other fails in words of its own.
        if start > (end := ends[topic, partition]):
            raise Problem(
                f"{topic}/{partition} is read from {start}, and ends at {end}: the log was cut back",
                remedy="right after an election an end may be a little behind: run it again. If it stays so, what lay"
                " there is lost",
            )
        assigned.setdefault(topic, []).append(partition)
    reader = spark.read.format("kafka").options(**options(client))
    # By partitions, not by topics: one that is added while we look would have no offsets.
    reader = reader.option("assign", json.dumps(assigned))
    reader = reader.option("startingOffsets", offsets_json(starts))
    reader = reader.option("endingOffsets", offsets_json({place: ends[place] for place in starts}))
    if min_partitions is not None:
        reader = reader.option("minPartitions", min_partitions)
    return reader.load()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
