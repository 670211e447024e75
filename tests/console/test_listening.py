"""Loopback unless told; another address only where TLS protects what crosses the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallymark.console.server import Listening
from tallymark.errors import UsageError
from tests.cli.conftest import Run, run

__all__ = ["run"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_fine(host: str) -> None:
    Listening(host).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "tallymark.internal"])  # noqa: S104 - refused
def test_another_address_is_refused_unless_told(host: str) -> None:
    with pytest.raises(UsageError, match="in the clear") as refused:
        Listening(host).check()
    assert "--tls-in-front" in refused.value.remedy
    Listening(host, tls_in_front=True).check()


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    file = tmp_path / "tls.pem"
    with pytest.raises(UsageError, match="and its key"):
        Listening(certificate=file).check()
    with pytest.raises(UsageError, match="there is no file"):
        Listening(certificate=file, private_key=file).check()
    file.touch()
    Listening("0.0.0.0", certificate=file, private_key=file).check()  # noqa: S104 - with TLS


def test_the_verb_refuses_in_two_lines(run: Run) -> None:
    told = run("serve", "--host", "0.0.0.0", "--database", "postgresql://localhost/x")  # noqa: S104 - refused
    assert told.code == 2
    assert "in the clear" in told.err
    assert "Traceback" not in told.err


def test_the_document_is_printed_without_any_database(run: Run) -> None:
    told = run("serve", "--openapi")
    assert told.code == 0
    assert "/v1/messages/{id}" in told.json["paths"]
    assert told.json["info"]["title"] == "Tallymark"
