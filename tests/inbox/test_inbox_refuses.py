"""What cannot work is refused at the start: an exit code and a line or two, no traceback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from tallymark import Inbox, UsageError
from tallymark.broker.consumer import KafkaLog
from tallymark.errors import SettingsError
from tallymark.lifecycle import Role
from tests.children import Child, start_child
from tests.conftest import MakeTopic
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground

USAGE = 2
PROBLEM = 1
UNREACHABLE = 3


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("tests.inbox.app", "names no inbox"),
        (":inbox", "names no inbox"),
        ("tests.inbox.app:", "names no inbox"),
        ("tests/inbox/app.py:inbox", "names no inbox"),
        ("nothing_here:inbox", "there is no module nothing_here"),
        ("tests.inbox.nothing_here:inbox", "there is no module tests.inbox.nothing_here"),
        ("tests.inbox.app:letterbox", "its inboxes are: inbox"),
        ("tests.inbox.app:OPTIONS", "is dict, not an Inbox"),
        ("tests.inbox.app:inbox", "has no handlers"),
    ],
)
def test_a_reference_that_names_no_inbox_to_run(reference: str, said: str) -> None:
    with start_child(
        ["-m", "tallymark", "inbox", "run", reference], environment={"APP_OPTIONS": "{}"}
    ) as child:
        refused(child, USAGE, said)


def test_an_app_that_cannot_be_imported() -> None:
    with start_child(
        ["-m", "tallymark", "inbox", "run", "tests.inbox.app:inbox"],
        environment={"APP_OPTIONS": '{"mode": "later"}'},
    ) as child:
        refused(child, USAGE, "mode='later' is not known")
    with start_child(
        ["-m", "tallymark", "inbox", "run", "tests.inbox.app:inbox"], environment={"APP_OPTIONS": "{broken"}
    ) as child:
        refused(child, USAGE, "importing tests.inbox.app failed: JSONDecodeError")


def test_a_partition_that_is_named_twice() -> None:
    with pytest.raises(UsageError, match="assign= names t/1 twice"):
        Inbox("ledger", assign=[("t", 0), ("t", 1), ("t", 1)])


def test_a_client_that_cannot_be_made() -> None:
    with pytest.raises(SettingsError, match=r"session\.timeout\.ms"):
        KafkaLog({"bootstrap.servers": "127.0.0.1:1"}, group="ledger", session_timeout_ms=0)


def test_a_thread_that_hears_no_signal() -> None:
    """Before anything is looked at, and with what to do about it."""
    inbox, met = Inbox("ledger"), list[Exception]()
    inbox.handler("t")(lambda _message, _tx: None)

    def run() -> None:
        try:
            inbox.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
            met.append(error)

    thread = threading.Thread(target=run, name="beside")
    thread.start()
    thread.join(20)
    assert [type(each) for each in met] == [UsageError]
    assert "is run in thread beside" in str(met[0])


def test_an_unknown_topic(inbox_ground: Ground) -> None:
    with inbox_ground.inbox(topics=[inbox_ground.topic, "no-such-topic"]) as child:
        refused(child, PROBLEM, "there is no topic no-such-topic")
    with inbox_ground.inbox(assign=[(inbox_ground.topic, 7)]) as child:
        refused(child, USAGE, "names partition 7")


def test_a_database_without_the_schema(
    inbox_ground: Ground, make_database: Callable[[], str], make_inbox_ground: MakeInboxGround
) -> None:
    with inbox_ground.inbox(url=make_database()) as child:
        refused(child, PROBLEM, "tallymark init")
    producer = make_inbox_ground(like=inbox_ground, role=Role.PRODUCER)
    with producer.inbox() as child:
        refused(child, PROBLEM, "consumer")


def test_nobody_there(inbox_ground: Ground) -> None:
    with inbox_ground.inbox(url="postgresql://nobody@127.0.0.1:1/nothing") as child:
        refused(child, UNREACHABLE, "127.0.0.1:1")
    arguments = ["-m", "tallymark", "inbox", "run", "tests.inbox.app:inbox", "--database", inbox_ground.url]
    options = {"APP_OPTIONS": json.dumps({"topics": [inbox_ground.topic]})}
    with start_child([*arguments, "--bootstrap-servers", "127.0.0.1:1"], environment=options) as child:
        refused(child, UNREACHABLE, "127.0.0.1:1")


def test_two_inboxes_of_one_name_and_other_topics(inbox_ground: Ground, make_topic: MakeTopic) -> None:
    inbox_ground.send(10)
    with inbox_ground.inbox() as first:
        inbox_ground.wait_applied(10, first)
        with inbox_ground.inbox(topics=[make_topic(1)]) as second:
            refused(second, USAGE, f"consumer {inbox_ground.name} reads {inbox_ground.topic}")
        inbox_ground.send(10)
        inbox_ground.wait_applied(20, first)


def refused(child: Child, code: int, said: str) -> None:
    assert child.wait() == code, child.output
    assert said in child.output, child.output
    assert "Traceback" not in child.output
    assert len(child.output.strip().splitlines()) <= 4, child.output
