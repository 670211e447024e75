"""The pool for looking: lost connections are replaced unseen; what is asked by id is planned once, a search each time."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg
import pytest

from tallymark.store.postgres.searchpool import SearchPool
from tests.waiting import wait_for

OURS = "select pid from pg_stat_activity where application_name = 'pooled'"


def test_connections_that_the_server_closed_are_replaced_unseen(database: str) -> None:
    pool = SearchPool(database, size=3, application="pooled")
    with ExitStack() as all_at_once:
        for _ in range(3):
            all_at_once.enter_context(pool.connection()).execute("select 1")
    with psycopg.connect(database, autocommit=True) as operator:
        ended = operator.execute(f"select pg_terminate_backend(pid) from ({OURS}) ours".encode()).fetchall()
        assert len(ended) == 3
        wait_for(lambda: not operator.execute(OURS).fetchall(), what="the server has closed them")
    for _ in range(3):
        with pool.connection() as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    assert pool.lent == 0
    pool.close()


@pytest.mark.parametrize(("lookup", "planned_anew"), [(True, False), (False, True)])
def test_a_lookup_is_planned_once_and_a_search_each_time(
    database: str, lookup: bool, planned_anew: bool
) -> None:
    pool = SearchPool(database, size=1)
    for number in range(8):
        with pool.connection(lookup=lookup) as connection:
            connection.execute("select relname from pg_class where oid = %s", [number])
    with pool.connection() as connection:
        plans = connection.execute(
            "select sum(generic_plans), sum(custom_plans) from pg_prepared_statements"
            " where statement like '%pg_class%'"
        ).fetchone()
    pool.close()
    assert plans is not None
    generic, custom = plans
    assert (generic == 0, custom == 0) == (planned_anew, not planned_anew)
