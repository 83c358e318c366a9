"""From an order to a parcel: take the stock, have large orders approved, charge the customer, send the parcel."""

from perdure import Signal, State, attempt, task, workflow

APPROVAL_FROM_CENTS = 100_000

approved = Signal("approved", str)
step = State("step", "queued")


@workflow
async def fulfil(order_id: int) -> str:
    step.set("taking stock")
    cents = await take_stock(order_id)
    if cents is None:
        return await mark(order_id, "out of stock")
    if cents >= APPROVAL_FROM_CENTS:
        step.set("waiting for approval")
        await mark(order_id, "waiting for approval")
        await approved.next()
    step.set("delivering")
    return await deliver(order_id, cents)


async def deliver(order_id: int, cents: int) -> str:
    if not await charge(order_id, cents):
        return await mark(order_id, "not paid")
    parcel = await send_parcel(order_id)
    return await mark(order_id, "sent", parcel)


@task(transactional=True)
async def take_stock(order_id: int) -> int | None:
    """What the order costs; None if there is not enough of it."""
    taken = """
        update products set stock = stock - quantity from orders
        where orders.sku = products.sku and orders.id = $1 and stock >= quantity returning quantity * price_cents"""
    return await attempt().connection.fetchval(taken, order_id)


@task(transactional=True)
async def charge(order_id: int, cents: int) -> bool:
    paid = """
        update customers set balance_cents = balance_cents - $2 from orders
        where orders.customer_id = customers.id and orders.id = $1 and balance_cents >= $2 returning true"""
    return bool(await attempt().connection.fetchval(paid, order_id, cents))


@task
async def send_parcel(order_id: int) -> str:
    """A call to the carrier, in a real shop. It may happen twice, so the carrier gets the number of the order."""
    return f"parcel-{order_id}"


@task(transactional=True)
async def mark(order_id: int, status: str, parcel: str | None = None) -> str:
    marked = "update orders set status = $2, parcel = $3 where id = $1"
    await attempt().connection.execute(marked, order_id, status, parcel)
    return status
