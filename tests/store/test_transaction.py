"""A transaction for a person who waits: whatever goes wrong in it, or at its end, is said in our words."""

from __future__ import annotations

import psycopg
import pytest

from tallymark.errors import OutcomeUnknown, Problem
from tallymark.store.postgres.connection import transaction

MADE = """create table made (n int primary key);
create function late() returns trigger language plpgsql as $$ begin
  if new.n = 1 then raise exception 'not today'; end if;
  if new.n = 2 then perform pg_terminate_backend(pg_backend_pid()); end if;
  return null;
end $$;
create constraint trigger late after insert on made deferrable initially deferred for each row execute function late()"""


@pytest.mark.parametrize(
    ("number", "error", "said"), [(1, Problem, "not today"), (2, OutcomeUnknown, "during a commit")]
)
def test_what_comes_with_the_commit_is_said_as_well(
    database: str, number: int, error: type[Exception], said: str
) -> None:
    """Past the block's end it was a bare error of the driver's, and taken for a bug of ours."""
    with psycopg.connect(database) as connection:
        connection.execute(MADE)
    with pytest.raises(error, match=said), transaction(database, application="tests") as ours:
        ours.execute("insert into made values (%s)", [number])
    with pytest.raises(Problem, match="duplicate key"), transaction(database, application="tests") as ours:
        ours.execute("insert into made values (3), (3)")
    with transaction(database, application="tests") as ours:
        ours.execute("insert into made values (4)")
    with psycopg.connect(database) as connection:
        assert connection.execute("select n from made").fetchall() == [(4,)]
