"""What a server is made of. `app` puts it together; REST and gRPC are handed the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from perdure.core.access import Permission, Principal
from perdure.engine.api.approvals import Approvals
from perdure.engine.api.dead_letters import DeadLetters
from perdure.engine.api.flow_control import Rulebook
from perdure.engine.api.reads import Reads, Registry
from perdure.engine.engine import Engine
from perdure.server.auth.audit import Audit
from perdure.server.auth.ports import Detail, KeyAdmin
from perdure.server.secret_box import SecretBox


class Auth(Protocol):
    """Finds out who asks. Raises Unauthenticated, Forbidden or RateLimited."""

    async def check(self, headers: Mapping[str, str], permission: Permission | None) -> Principal:
        """`headers` has lower-case names. Without a permission any principal will do."""
        ...

    async def recheck(self, principal: Principal) -> bool:
        """Whether somebody who was let in earlier would still be."""
        ...


@dataclass
class Server:
    engine: Engine
    reads: Reads
    registry: Registry
    auth: Auth
    keys: KeyAdmin
    log: Audit
    public_url: str
    rulebook: Rulebook
    approvals: Approvals
    dead: DeadLetters
    secrets: SecretBox = field(default_factory=SecretBox)
    """Seals what must be read again. Without a key it seals nothing."""

    async def audit(
        self, principal: Principal, action: str, target: str, detail: Detail | None = None, *, ns: int | None = None
    ) -> None:
        """Remember who did what. `ns` is the namespace it was done in; None for what belongs to none."""
        await self.log.record(principal, action, target, ns, detail)
