"""From an order to a parcel: take the stock, have large orders approved, charge the customer, send the parcel."""

from sqlalchemy import text

from shop.database import sessions

APPROVAL_FROM_CENTS = 100_000


async def fulfil(order_id: int) -> None:
    cents = await take_stock(order_id)
    if cents is None:
        return await mark(order_id, "out of stock")
    if cents >= APPROVAL_FROM_CENTS:
        return await mark(order_id, "waiting for approval")
    return await deliver(order_id, cents)


async def approved(order_id: int) -> None:
    async with sessions() as session:
        found = "select quantity * price_cents from orders join products using (sku) where id = :id"
        cents = (await session.execute(text(found), {"id": order_id})).scalar_one()
    await deliver(order_id, cents)


async def deliver(order_id: int, cents: int) -> None:
    if not await charge(order_id, cents):
        return await mark(order_id, "not paid")
    parcel = await send_parcel(order_id)
    return await mark(order_id, "sent", parcel)


async def take_stock(order_id: int) -> int | None:
    """What the order costs; None if there is not enough of it."""
    async with sessions.begin() as session:
        taken = """
            update products set stock = stock - quantity from orders
            where orders.sku = products.sku and orders.id = :id and stock >= quantity returning quantity * price_cents"""
        return (await session.execute(text(taken), {"id": order_id})).scalar()


async def charge(order_id: int, cents: int) -> bool:
    async with sessions.begin() as session:
        paid = """
            update customers set balance_cents = balance_cents - :cents from orders
            where orders.customer_id = customers.id and orders.id = :id and balance_cents >= :cents returning true"""
        return bool((await session.execute(text(paid), {"id": order_id, "cents": cents})).scalar())


async def send_parcel(order_id: int) -> str:
    """A call to the carrier, in a real shop."""
    return f"parcel-{order_id}"


async def mark(order_id: int, status: str, parcel: str | None = None) -> None:
    async with sessions.begin() as session:
        marked = "update orders set status = :status, parcel = :parcel where id = :id"
        await session.execute(text(marked), {"id": order_id, "status": status, "parcel": parcel})
