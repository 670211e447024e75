"""Flags over environment over file over defaults; every value knows its place, and so does every mistake."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tallymark.errors import EXIT_USAGE, SettingsError
from tallymark.lifecycle import Mode, Role
from tallymark.settings import Entry, Loaded, Origin, Source, load

FILE = """
schema_name = "from_file"
database = "bank"

[kafka]
bootstrap_servers = ["a:9092", "b:9092"]
client = { "security.protocol" = "SASL_SSL", "sasl.password" = "hunter22", "enable.ssl.ocsp" = false }

[databases.bank]
url = "postgresql://teller:pa55word@db/bank"
role = "producer"

[databases.ledger]
url = "host=db dbname=ledger user=clerk password=le4ger"

[relay]
mode = "sync"
retention = "36h"
batch_bytes = "2MiB"
"""


def loaded(folder: Path, text: str = "", environ: Mapping[str, str] | None = None, **flags: object) -> Loaded:
    if text:
        (folder / "tallymark.toml").write_text(text)
    given: dict[tuple[str, ...], tuple[str, object]] = {
        (name,): (f"--{name}", value) for name, value in flags.items()
    }
    return load(flags=given, environ=environ or {}, directory=folder)


def test_defaults_stand_alone(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    assert found.settings.schema_name == "tallymark"
    assert found.settings.relay.mode is Mode.TRANSACTIONAL
    assert found.settings.relay.retention == timedelta(days=7)
    assert found.origin("relay", "mode") == Origin(Source.DEFAULT)
    assert found.file is None


def test_a_file_is_read_from_the_working_directory(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE)
    settings = found.settings
    assert settings.kafka.bootstrap_servers == "a:9092,b:9092"
    assert settings.kafka.client["enable.ssl.ocsp"].get_secret_value() == "false"
    assert settings.databases["bank"].role is Role.PRODUCER
    assert settings.databases["ledger"].role is Role.BOTH
    assert settings.relay.retention == timedelta(hours=36)
    assert settings.relay.batch_bytes == 2 * 2**20
    assert found.origin("relay", "mode") == Origin(Source.FILE, f"{tmp_path / 'tallymark.toml'}:17")


def test_environment_wins_over_file_and_flags_over_both(tmp_path: Path) -> None:
    environ = {
        "TALLYMARK_SCHEMA_NAME": "from_environment",
        "TALLYMARK_RELAY__MODE": "callback",
        "TALLYMARK_RELAY__ACCEPT_RISK": "replication.factor, cleanup.policy",
        "TALLYMARK_BOOTSTRAP_SERVERS": "c:9092",
        "TALLYMARK_KAFKA__CLIENT__SASL_USERNAME": "joe",
        "TALLYMARK_DATABASES__LEDGER__ROLE": "consumer",
    }
    found = loaded(tmp_path, FILE, environ, schema_name="from_flag")
    settings = found.settings
    assert settings.schema_name == "from_flag"
    assert settings.relay.mode is Mode.CALLBACK
    assert settings.relay.accept_risk == ("replication.factor", "cleanup.policy")
    assert settings.kafka.bootstrap_servers == "c:9092"
    assert settings.kafka.client["sasl.username"].get_secret_value() == "joe"
    assert settings.kafka.client["security.protocol"].get_secret_value() == "SASL_SSL"
    assert settings.databases["ledger"].role is Role.CONSUMER
    assert str(found.origin("schema_name")) == "--schema_name"
    assert str(found.origin("relay", "mode")) == "TALLYMARK_RELAY__MODE"


def test_a_fallback_yields_to_everything_but_defaults(tmp_path: Path) -> None:
    local = Origin(Source.LOCAL, "here")
    fallback = [Entry(("schema_name",), "local", local), Entry(("topic_prefix",), "local.", local)]
    (tmp_path / "tallymark.toml").write_text('schema_name = "mine"')
    found = load(environ={}, directory=tmp_path, fallback=fallback)
    assert (found.settings.schema_name, found.settings.topic_prefix) == ("mine", "local.")
    assert str(found.origin("topic_prefix")) == "local cluster here"


def test_variables_of_other_parts_and_empty_ones_are_no_settings(tmp_path: Path) -> None:
    environ = {"TALLYMARK_HOME": "/x", "TALLYMARK_TEST_HOME": "/y", "TALLYMARK_DATABASE": "", "OTHER": "z"}
    assert loaded(tmp_path, environ=environ).origins == {}


def test_unquoted_client_names_mean_the_same(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[kafka.client]\nsecurity.protocol = "SSL"\nssl.ca.location = "ca.pem"')
    assert {name: value.get_secret_value() for name, value in found.settings.kafka.client.items()} == {
        "security.protocol": "SSL",
        "ssl.ca.location": "ca.pem",
    }


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ('[relay]\nmod = "sync"', ":2: unknown setting relay.mod", "Did you mean relay.mode?"),
        ("[realy]", ":1: unknown setting realy", "Did you mean relay?"),
        ('bootstrap_servers = "a:1"', ":1: unknown setting bootstrap_servers", "kafka.bootstrap_servers?"),
        ('[databases.bank]\nulr = "x"', ":2: unknown setting databases.bank.ulr", "databases.bank.url?"),
        ("relay = 3", ":1: relay holds settings of its own", "Known there: accept_risk"),
        ("[relay.mode]\nx = 1", ":2: relay.mode takes a single value", "Write mode = …"),
        ('[kafka.client]\nssl.ca.location = "x"\nacks = "1"', ":3: kafka.client.acks cannot be set", ""),
        ('[relay]\n\nbatch_messages = "ten"', ":3: relay.batch_messages should be a valid integer", "'ten'"),
        (
            '[relay]\nmode = "fast"',
            ":2: relay.mode should be 'transactional', 'callback' or 'sync'",
            "'fast'",
        ),
        ('[relay]\nretention = "a week"', ':2: relay.retention must be written like "7d"', "'a week'"),
        ("[relay]\nlease_seconds = -1", ":2: relay.lease_seconds should be greater than 0", "-1"),
        ("[relay]\naccept_risk = [1]", ":2: relay.accept_risk should be a valid string", "safety rule"),
        ("schema_name = 5", ":1: schema_name should be a valid string", "5"),
        ('schema_name = "My Schema"', ":1: schema_name must be a plain name", "'My Schema'"),
        ('schema_name = "x; drop"', ":1: schema_name must be a plain name", ""),
        ('schema_name = "public"', ":1: schema_name must be a schema of Tallymark's own", ""),
        ('[kafka]\nbootstrap_servers = "kafka"', ":2: kafka.bootstrap_servers must be host:port", ""),
        ('[databases.bank]\nrole = "producer"', ":2: databases.bank needs url", "postgresql://"),
        ('[databases.bank]\nurl = "mysql://x"', ":2: databases.bank.url must be a postgresql:// URL", ""),
        ("x = [1,", ": not valid TOML", "Correct"),
        ("a = 1\na = 2\nb = 3", "(at line 2, column 6)", "Correct"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_its_place(
    tmp_path: Path, text: str, what: str, remedy: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, text)
    assert what in str(caught.value)
    assert str(tmp_path / "tallymark.toml") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert remedy in caught.value.sentence
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("TALLYMARK_BOOTSTRAP_SERVER", "x:1", "Did you mean kafka.bootstrap_servers?"),
        ("TALLYMARK_RELAY__MODEE", "sync", "Did you mean relay.mode?"),
        ("TALLYMARK_RELAY", "sync", "holds settings of its own"),
        ("TALLYMARK_RELAY__POLL_MS", "soon", "relay.poll_ms should be a valid number, not 'soon'"),
        ("TALLYMARK_KAFKA__CLIENT__ENABLE_IDEMPOTENCE", "false", "cannot be set"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    tmp_path: Path, variable: str, value: str, what: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, environ={variable: value})
    assert str(caught.value).startswith(variable)
    assert what in caught.value.sentence


def test_two_variables_that_disagree_are_refused(tmp_path: Path) -> None:
    environ = {"TALLYMARK_BOOTSTRAP_SERVERS": "a:1", "TALLYMARK_KAFKA__BOOTSTRAP_SERVERS": "b:1"}
    with pytest.raises(SettingsError, match=r"both set kafka\.bootstrap_servers"):
        loaded(tmp_path, environ=environ)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--config: there is no file"):
        load(environ={}, directory=tmp_path, config=tmp_path / "absent.toml")
    with pytest.raises(SettingsError, match="TALLYMARK_CONFIG: there is no file"):
        load(environ={"TALLYMARK_CONFIG": str(tmp_path / "absent.toml")}, directory=tmp_path)


def test_a_silence_must_end_before_a_poll_is_missed(tmp_path: Path) -> None:
    """Kafka's client takes no session that lasts longer than a process may take between two polls."""
    loaded(tmp_path, '[inbox]\nsession_timeout = "5m"')
    with pytest.raises(
        SettingsError, match=r"max_poll_interval must not be shorter than .*session_timeout \(600s"
    ):
        loaded(tmp_path, '[inbox]\nsession_timeout = "10m"')
    with pytest.raises(
        SettingsError, match=r"max_poll_interval must not be shorter than .*session_timeout \(45s"
    ):
        loaded(tmp_path, '[inbox]\nmax_poll_interval = "30s"')


def test_secrets_appear_nowhere(tmp_path: Path) -> None:
    found = loaded(tmp_path, FILE)
    written = repr(found) + repr(found.settings) + str(found.shown()) + found.settings.model_dump_json()
    for secret in ("hunter22", "pa55word", "le4ger"):
        assert secret not in written
    shown = {each.name: each.value for each in found.shown()}
    assert shown['kafka.client."sasl.password"'] == "********"
    assert shown['kafka.client."security.protocol"'] == "SASL_SSL"
    assert shown["databases.bank.url"] == "postgresql://teller:********@db/bank"
    assert shown["databases.ledger.url"] == "host=db dbname=ledger user=clerk password=********"


def test_a_secret_of_the_wrong_type_is_not_quoted_back(tmp_path: Path) -> None:
    for text in (
        '[kafka.client]\n"sasl.password" = ["tops3cret"]',
        '[databases]\nbank = "postgresql://u:tops3cret@h/x"',
        '[databases.bank]\nurl = "mysql://u:tops3cret@h/x"',
    ):
        with pytest.raises(SettingsError) as caught:
            loaded(tmp_path, text)
        assert "tops3cret" not in caught.value.sentence
