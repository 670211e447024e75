"""The same with SQLAlchemy's AsyncSession. Run: python examples/sqlalchemy_async_outbox.py postgresql+asyncpg://…"""

import asyncio
import sys

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tallymark import Outbox

outbox = Outbox("/bank")


async def transfer(url: str, name: str, amount: int) -> str:
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session, session.begin():
        taken = {"name": name, "amount": amount}
        await session.execute(
            text("update accounts set balance = balance - :amount where name = :name"), taken
        )
        id_ = await outbox.add_async(session, "transfers", taken, key=name, type="transfer.made")
    await engine.dispose()
    return str(id_)


if __name__ == "__main__":
    print(asyncio.run(transfer(sys.argv[1], "alice", 5)))
