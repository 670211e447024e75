"""The inbox as services import it: `Inbox("ledger")`, with `run()`.

inbox = Inbox("ledger", database="ledger")

@inbox.handler("transfers", model=Transfer)
def apply(message, tx):
    tx.execute("update account set balance = balance + %s where id = %s", …)

inbox.run()                     # or: tallymark inbox run app:inbox
"""

from __future__ import annotations

from tallymark.inbox.definition import Definition


class Inbox(Definition):
    """Receives, keeps and applies the messages of some topics, each once."""

    def run(self, *, metrics_port: int | None = None) -> None:
        """Run here until SIGTERM or Ctrl-C, with the settings that the command line would use."""
        from tallymark.cli.inboxrun import serve

        serve(self, metrics_port=metrics_port)
