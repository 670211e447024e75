"""Bad input: one or two clear lines, before Spark is started and with nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tallymark.cli.main import main
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox.ground import Ground

Run = Callable[..., tuple[int, str]]

# Left to the batches each would fail for every message, and park all of the topic.
UNWORKABLE = {
    "table": "insert into nowhere select id from {batch}",
    "column": "insert into effect (message_id) select colour from {batch}",
    "function": "insert into effect (message_id) select conjure(value) from {batch}",
    "syntax": "insert into effect (message_id) select id::text form {batch} where",
}


@pytest.fixture
def ingest(inbox_ground: Ground, capsys: pytest.CaptureFixture[str]) -> Run:
    """`tallymark pipeline ingest …` on a ground; its exit code and what it said on stderr."""

    def run(*arguments: str, url: str | None = None, servers: str | None = None) -> tuple[int, str]:
        where = [
            "--database",
            url or inbox_ground.url,
            "--bootstrap-servers",
            servers or inbox_ground.servers,
        ]
        code = main(["pipeline", "ingest", "--available-now", *where, *arguments])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert len(said.strip().splitlines()) <= 2, said
        return code, said

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "who reads what?"),
        (("--consumer", "a b", "--topic", "{topic}"), 2, "'a b' is not a consumer's name"),
        (("--consumer", "x", "--topic", "not-there"), 1, "there is no topic not-there"),
        (("--consumer", "x", "--topic", "{topic}", "--start", "middle"), 2, "--start middle is not known"),
        (("--consumer", "x", "--topic", "{topic}", "--conf", "spark"), 2, "a setting is name=value"),
        (
            ("--consumer", "x", "--topic", "{topic}", "--conf", "spark.speculation=true"),
            2,
            "speculative execution runs a task twice",
        ),
        (
            ("--consumer", "x", "--topic", "{topic}", "--apply", "nowhere:apply"),
            2,
            "there is no module nowhere",
        ),
        (
            ("--consumer", "x", "--topic", "{topic}", "--apply", "json:nothing"),
            2,
            "there is no nothing in json",
        ),
        (("--consumer", "x", "--topic", "{topic}", "--apply-sql", "{folder}/none.sql"), 2, "cannot be read"),
        (
            ("--consumer", "x", "--topic", "{topic}", "--apply-sql", "{folder}/odd.sql"),
            2,
            "does not name {batch}",
        ),
        (
            ("--consumer", "x", "--topic", "{topic}", "--apply-sql", "{folder}/table.sql"),
            2,
            'cannot work: relation "nowhere" does not exist (42P01)',
        ),
        (
            ("--consumer", "x", "--topic", "{topic}", "--apply-sql", "{folder}/column.sql"),
            2,
            'cannot work: column "colour" does not exist (42703)',
        ),
        (
            ("--consumer", "x", "--topic", "{topic}", "--apply-sql", "{folder}/function.sql"),
            2,
            "cannot work: function conjure(bytea) does not exist (42883)",
        ),
        (
            ("--consumer", "x", "--topic", "{topic}", "--apply-sql", "{folder}/syntax.sql"),
            2,
            "cannot work: syntax error",
        ),
        (
            ("--consumer", "x", "--topic", "{topic}", "--checkpoint", "{folder}/odd.sql"),
            1,
            "cannot be written",
        ),
        (("app:inbox", "--consumer", "x"), 2, "an inbox brings its own name"),
    ],
)
def test_what_cannot_be_run_is_said(
    ingest: Run, inbox_ground: Ground, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "odd.sql").write_text("select 1")
    for name, statement in UNWORKABLE.items():
        (tmp_path / f"{name}.sql").write_text(statement)
    given = [
        each.replace("{topic}", inbox_ground.topic).replace("{folder}", str(tmp_path)) for each in arguments
    ]
    found, wrote = ingest(*given)
    assert said in wrote
    assert found == code
    assert inbox_ground.value("select count(*) from tallymark.runs") == 0
    assert inbox_ground.positions() == {}


@pytest.mark.parametrize(
    ("module", "option", "said"),
    [
        ("keeps_in_kafka", 'positions="kafka"', 'positions="kafka" is for services'),
        ("is_assigned", 'assign=[("transfers", 0)]', "assign= is for services"),
    ],
)
def test_what_only_a_service_can_do_is_refused(
    ingest: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, option: str, said: str
) -> None:
    """And not left out: who assigns a partition does not want the others to be read."""
    lines = [
        "from tallymark import Inbox",
        f'inbox = Inbox("x", {option})',
        'inbox.handler("transfers")(print)',
    ]
    (tmp_path / f"{module}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    code, wrote = ingest(f"{module}:inbox")
    assert said in wrote
    assert code == 2


def test_a_spark_home_that_is_none(
    ingest: Run, inbox_ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "gone"))
    code, said = ingest("--consumer", "x", "--topic", inbox_ground.topic)
    assert code == 2
    assert f"SPARK_HOME is {tmp_path / 'gone'}, and there is no bin/spark-submit in it" in said
    assert inbox_ground.positions() == {}


def test_a_database_without_the_schema(
    ingest: Run, inbox_ground: Ground, make_database: Callable[[], str]
) -> None:
    code, said = ingest("--consumer", "x", "--topic", inbox_ground.topic, url=make_database())
    assert code == 1
    assert "there is no schema tallymark" in said
    assert "tallymark init" in said


def test_kafka_and_postgresql_that_are_not_there(ingest: Run, inbox_ground: Ground) -> None:
    what = ("--consumer", "x", "--topic", inbox_ground.topic)
    code, said = ingest(*what, servers="127.0.0.1:1")
    assert code == 3
    assert "127.0.0.1:1" in said
    code, said = ingest(*what, url="postgresql://nobody@127.0.0.1:1/none")
    assert code == 3
    assert "cannot be reached" in said


def test_a_live_program_of_the_same_name_that_reads_something_else(ingest: Run, inbox_ground: Ground) -> None:
    from tallymark.inbox.ports import Instance

    store = PostgresInboxStore(inbox_ground.url, "x")
    store.enlist(Instance("other", "x", ("something-else",), "inline", "0", "here", 1), 60)
    code, said = ingest("--consumer", "x", "--topic", inbox_ground.topic)
    assert code == 2
    assert "consumer x reads something-else" in said
    store.close()
