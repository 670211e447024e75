"""`tallymark tally resend` by the command line: what it counts and what it refuses; the stores alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.tally.resends import Ground, tables

__all__ = ["tables"]

LOST = """
insert into tallymark.findings (id, verdict, consumer, stage, topic, position, evidence, run)
select id::text, verdict, consumer, stage, topic, position, '', gen_random_uuid()
  from tallymark.outbox
 cross join (values ('lost-in-log', '', 'log'), ('lost-in-inbox', 'ledger', 'inbox'), ('unapplied', 'ledger', 'apply'))
            v(verdict, consumer, stage)
"""


@pytest.fixture
def ground(tables: str) -> Ground:
    return Ground(tables, [f"key-{n}" for n in range(40)])


def test_what_is_left_is_counted_and_not_only_what_was_looked_at(ground: Ground, run: Run) -> None:
    """A message counts once, however many findings speak of it; and not where nothing is open that a resend mends."""
    ground.query(LOST)
    ground.query("update tallymark.findings set over_at = now() where position = 40")
    ground.query("delete from tallymark.findings where position = 39 and verdict <> 'unapplied'")
    ground.query("delete from tallymark.findings where position = 38 and verdict = 'lost-in-log'")

    def said(*arguments: str) -> tuple[int, Any]:
        done = run("tally", "resend", "--dry-run", "--json", "--database", ground.url, *arguments).json
        assert done["refused"] == {}
        return len(done["resent"]), done["left"]

    # Ten times as many findings are looked at, which is ten messages.
    assert said("--limit", "2") == (2, 36)
    assert said("--limit", "2", "--verdict", "lost-in-log") == (2, 35)
    assert said("--limit", "38") == (38, 0)
    assert said("--limit", "1", *ground.ids[:3]) == (1, 2)


@pytest.mark.parametrize(
    ("seen", "wrong"), [("yesterday", "is no time: 'yesterday'"), ("2026-11-01T08:00:00", "has no time zone")]
)
def test_a_finding_in_a_file_that_was_seen_at_no_time_is_a_mistake_of_the_file(
    ground: Ground, run: Run, tmp_path: Path, seen: str, wrong: str
) -> None:
    file = tmp_path / "findings.json"
    file.write_text(json.dumps([{"id": ground.ids[0], "verdict": "lost-in-inbox", "last_seen": seen}]))
    done = run("tally", "resend", "--json", "--database", ground.url, "--findings", str(file))
    assert done.code == 2
    assert f"last_seen of finding {ground.ids[0]} {wrong}" in done.json["error"]
