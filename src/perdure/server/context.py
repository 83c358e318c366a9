"""What a server is made of. `app` puts it together; its doors share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from perdure.core.access import Permission, Principal
from perdure.engine.api.api import Api
from perdure.engine.engine import Engine


class Auth(Protocol):
    """Finds out who asks. Raises Unauthenticated, Forbidden or RateLimited."""

    async def check(self, headers: Mapping[str, str], permission: Permission | None) -> Principal:
        """`headers` has lower-case names. Without a permission any principal will do."""
        ...

    async def recheck(self, principal: Principal) -> bool:
        """Whether a principal that was let in earlier would still be."""
        ...


@dataclass(frozen=True, slots=True)
class Server:
    api: Api
    auth: Auth

    @property
    def engine(self) -> Engine:
        return self.api.engine
