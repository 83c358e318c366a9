"""The shop over HTTP.

uvicorn shop.main:app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError

from perdure import Perdure, in_transaction
from perdure.frameworks.fastapi import PerdureClient, answer_errors, lifespan
from shop.database import URL, DatabaseSession, engine
from shop.fulfilment import approved, fulfil, step
from shop.models import Base, Order


@asynccontextmanager
async def database(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan(partial(Perdure, URL), own=database))
answer_errors(app)

UNDERWAY = ("placed", "waiting for approval")
"""Statuses of orders whose run hasn't ended. Retention removes the runs of the others."""


class NewOrder(BaseModel):
    reference: str
    customer_id: int
    sku: str
    quantity: int


class OrderState(BaseModel):
    id: int
    status: str
    parcel: str | None = None
    step: str | None = None


class Decision(BaseModel):
    by: str


@app.post("/orders", status_code=201)
async def place(new: NewOrder, session: DatabaseSession) -> OrderState:
    order = Order(**new.model_dump())
    async with session.begin():
        session.add(order)
        await session.flush()  # the order gets its id
        await in_transaction(session).start(fulfil.options(key=f"order-{order.id}"), order.id)
    return OrderState(id=order.id, status=order.status)


@app.get("/orders/{order_id}")
async def state(order_id: int, session: DatabaseSession, client: PerdureClient) -> OrderState:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    now = await client.query(step, f"key:order-{order_id}") if order.status in UNDERWAY else None
    return OrderState(id=order.id, status=order.status, parcel=order.parcel, step=now)


@app.post("/orders/{order_id}/approval", status_code=202)
async def approve(order_id: int, decision: Decision, session: DatabaseSession) -> None:
    async with session.begin():
        order = await session.get(Order, order_id, with_for_update=True)
        if order is None:
            raise HTTPException(404, "there is no such order")
        if order.approved_by is not None:
            raise HTTPException(409, f"the order was approved by {order.approved_by}")
        order.approved_by = decision.by
        await in_transaction(session).signal(approved, f"key:order-{order_id}", decision.by)


@app.exception_handler(IntegrityError)
async def conflict(request: Request, error: IntegrityError) -> JSONResponse:
    return JSONResponse({"detail": "the order breaks a rule of the shop"}, 409)
