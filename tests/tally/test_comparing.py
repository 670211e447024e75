"""Two tables side by side: what differs, and what would mend it. Pure."""

from __future__ import annotations

import pytest

from tallymark.errors import UsageError
from tallymark.tally.comparing import Difference, checked_columns, identifier, repair_messages, repair_sql

DIFFERS = Difference({"id": "a'b"}, "differs", {"balance": "10", "name": "A"}, {"balance": None, "name": "A"})
ONLY_LEFT = Difference({"id": "c"}, "missing-right", {"balance": "1", "name": None}, {}, (1, 0))
ONLY_RIGHT = Difference({"id": "d"}, "missing-left", {}, {"balance": "1", "name": None}, (0, 1))
DOUBLED = Difference({"id": "e"}, "doubled", {"balance": "1", "name": ""}, {}, (2, 0))


def test_only_what_differs_is_named() -> None:
    assert DIFFERS.columns == {"balance": ("10", None)}
    assert ONLY_LEFT.columns == {}
    assert DIFFERS.as_json()["columns"] == {"balance": {"left": "10", "right": None}}


def test_statements_make_the_right_table_say_what_the_left_one_does() -> None:
    assert list(repair_sql("bank.account", [DIFFERS, ONLY_LEFT, ONLY_RIGHT, DOUBLED])) == [
        'update "bank"."account" set "balance" = \'10\' where "id" = \'a\'\'b\' and "balance" is null;',
        'insert into "bank"."account" ("id", "balance", "name") select \'c\', \'1\', null'
        ' where not exists (select 1 from "bank"."account" where "id" = \'c\') on conflict do nothing;',
        'delete from "bank"."account" where "id" = \'d\' and "balance" = \'1\' and "name" is null;',
        '-- doubled, look yourself: {"id": "e"}',
    ]


def test_messages_say_what_the_left_table_says() -> None:
    assert list(repair_messages([DIFFERS, ONLY_RIGHT, DOUBLED])) == [
        '{"key": "a\'b", "value": {"id": "a\'b", "balance": "10", "name": "A"}}',
        '{"key": "d", "value": null}',
    ]


def test_names_that_are_none_are_refused() -> None:
    assert identifier("public.account") == '"public"."account"'
    for bad in ("", "a b", 'a"; drop', "a..b"):
        with pytest.raises(UsageError):
            identifier(bad)
    with pytest.raises(UsageError, match="the right table has no column balance"):
        checked_columns(["id", "balance"], ["id", "balance"], ["id"])
