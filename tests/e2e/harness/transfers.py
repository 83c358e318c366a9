"""Money that moves between accounts in transactional tasks, of both kinds."""

from __future__ import annotations

from perdure import Retry, attempt, task, workflow

RETRY = Retry(50, delay="20ms")
"""A kill costs an attempt of every transfer that is under way."""


@task(transactional=True, retry=RETRY)
async def moved(transfer: int, source: int, target: int, cents: int) -> int:
    connection = attempt().connection
    entry = await connection.fetchval("insert into entry (transfer) values ($1) returning id", transfer)
    await connection.execute("update account set cents = cents - $1 where id = $2", cents, source)
    await connection.execute("select pg_sleep(0.2)")
    await connection.execute("update account set cents = cents + $1 where id = $2", cents, target)
    return int(entry)


@task(transactional=True, retry=RETRY)
def moved_by_a_function(transfer: int, source: int, target: int, cents: int) -> int:
    connection = attempt().connection
    entry = connection.execute("insert into entry (transfer) values (%s) returning id", (transfer,)).fetchone()[0]
    connection.execute("update account set cents = cents - %s where id = %s", (cents, source))
    connection.execute("select pg_sleep(0.2)")
    connection.execute("update account set cents = cents + %s where id = %s", (cents, target))
    return int(entry)


@workflow
async def transferred(transfer: int, source: int, target: int, cents: int) -> int:
    """Returns the number of the entry in the books."""
    move = moved if transfer % 2 else moved_by_a_function
    return await move(transfer, source, target, cents)
