"""The consumer of the tally's tests: `tallymark inbox run tests.tally.app:inbox`. It writes down whom it has seen."""

from __future__ import annotations

import os
from typing import Any

from tallymark import Inbox, Message

START: Any = os.environ.get("APP_START", "beginning")

inbox = Inbox(os.environ["APP_CONSUMER"], database=os.environ["APP_DATABASE"], start=START)


@inbox.handler(os.environ["APP_TOPIC"], batch=True)
def apply(messages: list[Message], tx: Any) -> None:
    tx.execute(
        "insert into effect (message_id, account, n, amount) select unnest(%s::text[]), '', 0, 0",
        [[str(message.id) for message in messages]],
    )
