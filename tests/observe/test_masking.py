"""Secrets are masked by shape, and by value once known."""

from __future__ import annotations

import pytest

from tallymark.observe.masking import is_secret_name, mask, masked, remember, url_password


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@h:5432/db", "postgresql://u:********@h:5432/db"),
        ("postgresql://:p@h/db", "postgresql://:********@h/db"),
        ("postgresql://u:a:b@c@h/db", "postgresql://u:********@h/db"),
        ("host=h password=secret dbname=x", "host=h password=******** dbname=x"),
        ("host=h password='two words' dbname=x", "host=h password=******** dbname=x"),
        ("postgresql://h/db?user=u&password=p&x=1", "postgresql://h/db?user=u&password=********&x=1"),
        ("{'sasl.password': 'p w', 'a': 1}", "{'sasl.password': ********, 'a': 1}"),
        ("ssl.key.password=abc, other=1", "ssl.key.password=********, other=1"),
        ("kafka://host:9092/topic at 10:30", "kafka://host:9092/topic at 10:30"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_by_shape(text: str, shown: str) -> None:
    assert mask(text) == shown


def test_by_value_also_in_its_url_form() -> None:
    remember("p@ss/w0rd-known")
    assert mask("driver says: p@ss/w0rd-known is wrong") == "driver says: ******** is wrong"
    assert mask("driver says: p%40ss%2Fw0rd-known") == "driver says: ********"


def test_short_values_do_not_blot_out_words() -> None:
    remember("a")
    assert mask("a cat") == "a cat"


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.jaas.config",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["sasl.username", "ssl.key.location", "sasl.oauthbearer.token.endpoint.url", "token"]
)
def test_public_names(name: str) -> None:
    assert not is_secret_name(name)


def test_structures_keep_their_shape() -> None:
    value = {"sasl.password": "x", "list": [1, None, True, "postgresql://u:p@h/d"], "none": None}
    assert masked(value) == {
        "sasl.password": "********",
        "list": [1, None, True, "postgresql://u:********@h/d"],
        "none": None,
    }


def test_the_password_in_an_address() -> None:
    assert url_password("postgresql://u:p4ss@h/d") == "p4ss"
    assert url_password("host=h password='p4 ss'") == "p4 ss"
    assert url_password("postgresql://u@h/d") is None
