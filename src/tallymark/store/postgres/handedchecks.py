"""Constraints that a handler's database checks only at the commit, looked at as soon as a handler is done.

At the commit a violation would belong to the whole batch; here it belongs to the message that made it. What a
constraint is by default, it is again afterwards.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

Cursor = psycopg.Cursor[tuple[Any, ...]]

# By each transaction anew: a migration may have added some.
_DEFERRABLE = """
select n.nspname, c.conname, c.condeferred
  from pg_catalog.pg_constraint c join pg_catalog.pg_namespace n on n.oid = c.connamespace
 where c.condeferrable
"""


class DeferredChecks:
    """One transaction's look at what is checked late."""

    def __init__(self) -> None:
        self._look: sql.Composed | None = None
        self._known = False

    def run(self, cursor: Cursor) -> None:
        """Raises what the commit would; the transaction is then as after any other error."""
        if not self._known:
            self._look, self._known = _look_of(cursor), True
        if self._look is not None:
            cursor.execute(self._look, prepare=False)


def _look_of(cursor: Cursor) -> sql.Composed | None:
    """Three statements in one trip; None where everything is checked at once anyway."""
    found = cursor.execute(_DEFERRABLE, prepare=False).fetchall()
    if not any(deferred for _, _, deferred in found):
        # A handler may have deferred some itself, for its own transaction.
        return sql.Composed([sql.SQL("set constraints all immediate")]) if found else None
    look: list[sql.Composable] = [sql.SQL("set constraints all immediate; set constraints all deferred")]
    if at_once := [sql.Identifier(schema, name) for schema, name, deferred in found if not deferred]:
        look.append(sql.SQL("; set constraints {} immediate").format(sql.SQL(", ").join(at_once)))
    return sql.Composed(look)
