"""P5 under Spark: a handler that ends its transaction past the guard costs what it was given, and nothing else (C9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.pipeline.effects import Effect, FunctionEffect, HandlersEffect, Messages
from tallymark.policy import Backoff
from tests.inbox.ground import Ground
from tests.pipeline.grounds import APPLY, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOON = Backoff(first_s=0.01, cap_s=0.05)


def beneath(tx: Any, statement: str) -> None:
    """By a cursor that nothing guards."""
    psycopg.ClientCursor(tx).execute(statement.encode())


def one_by_one(topic: str, end: str) -> Effect:
    handlers = Handlers()

    def write(message: Message, tx: Any) -> None:
        value = message.value
        if value["account"] == "poison":
            beneath(tx, end)
        row = [str(message.id), value["account"], value["n"], value["amount"]]
        tx.execute("insert into effect (message_id, account, n, amount) values (%s, %s, %s, %s)", row)
        booked = "update account set balance = balance + %s where id = %s"
        tx.execute(booked, [value["amount"], value["account"]])

    handlers.handler(topic)(write)
    return HandlersEffect(handlers)


def as_a_whole(topic: str, end: str) -> Effect:
    def apply(tx: Any, batch: Messages) -> None:
        bad = f"select count(*) from {batch.relation} where convert_from(value, 'utf8') like '%poison%'"
        if psycopg.ClientCursor(tx).execute(bad.encode()).fetchone() != (0,):
            beneath(tx, end)
        tx.execute(APPLY.replace("{batch}", batch.relation))

    return FunctionEffect(apply, [topic])


def dead(ground: Ground) -> set[str]:
    rows = ground.query("select id::text, reason from tallymark.dead_letters")
    assert all("ended its transaction" in reason for _, reason in rows)
    return {row[0] for row in rows}


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("how", [one_by_one, pytest.param(as_a_whole, marks=pytest.mark.full)])
def test_a_message_that_ends_its_transaction_is_a_dead_letter_and_the_rest_is_applied(
    inbox_ground: Ground, spark: SparkSession, how: Any, end: str
) -> None:
    """What was done before it, what came after it in its batch, and what waited for it."""
    ground = inbox_ground
    ground.send(40)
    (bad,) = ground.send(1, account="poison")
    ground.send(40)
    done = Run(ground, spark, how(ground.topic, end), backoff=SOON)()
    wanted = {bad} if (how, end) != (as_a_whole, "commit") else {record.id for record in ground.log()}
    assert dead(ground) == wanted
    found = ground.compare(without=wanted)
    assert found.is_clean, found
    assert ground.value("select count(*) from tallymark.queue where state <> 'dead'") == 0
    marked = ground.value("select count(*) from tallymark.applications")
    assert marked == ground.applied() == 81 - len(wanted)
    assert sum(each.read for each in done) == 81
    assert ground.value("select count(*) from tallymark.inbox") == 81
