"""The database of the shop: DATABASE_URL."""

import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

URL = os.environ.get("DATABASE_URL", "postgresql://localhost/shop")

engine = create_async_engine(make_url(URL).set(drivername="postgresql+asyncpg"))
sessions = async_sessionmaker(engine, expire_on_commit=False)


async def session() -> AsyncIterator[AsyncSession]:
    async with sessions() as open_session:
        yield open_session


DatabaseSession = Annotated[AsyncSession, Depends(session)]
