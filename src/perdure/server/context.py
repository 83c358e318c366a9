"""The parts of a server, built by `app` and shared by REST and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from perdure.core.access import Permission, Principal
from perdure.engine.api.api import Api
from perdure.engine.engine import Engine
from perdure.server.auth.sign_in import OidcSignIn
from perdure.server.auth.web_sessions import WebSessions


class Auth(Protocol):
    """Authenticates callers. Raises Unauthenticated, Forbidden or RateLimited."""

    async def check(self, headers: Mapping[str, str], permission: Permission | None) -> Principal:
        """`headers` has lower-case names. Without a permission any principal will do."""
        ...

    async def recheck(self, principal: Principal) -> bool:
        """Whether the credential of a principal is still valid."""
        ...


@dataclass(frozen=True, slots=True)
class Server:
    api: Api
    auth: Auth
    sessions: WebSessions | None = None
    """None: browsers cannot sign in here; `perdure dev` asks for its token alone."""
    oidc: OidcSignIn | None = None
    """None: no identity provider signs people in."""

    @property
    def engine(self) -> Engine:
        return self.api.engine
