"""A transfer and its message in one transaction, with SQLAlchemy. Run: python examples/sqlalchemy_outbox.py URL"""

import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tallymark import Outbox

outbox = Outbox("/bank")


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


def transfer(url: str, name: str, amount: int) -> str:
    with Session(create_engine(url)) as session, session.begin():
        account = session.get_one(Account, name, with_for_update=True)
        account.balance -= amount  # add() flushes this first
        id_ = outbox.add(
            session, "transfers", {"name": name, "amount": amount}, key=name, type="transfer.made"
        )
    return str(id_)


if __name__ == "__main__":
    print(transfer(sys.argv[1], "alice", 5))
