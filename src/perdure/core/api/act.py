"""An act: one thing that can be asked of Perdure, the same at every door.

A door (REST, gRPC, the embedded client) turns what it receives into the act's request, asks a `NamespaceApi` (engine/api), and turns the
reply into its own form. Everything that must be the same at every door stands here or happens in the API: the permission, the audit
actions, whether a repetition is safe, and how long the act may wait by design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from perdure.core.access import Permission

Q = TypeVar("Q")
R = TypeVar("R")

RunRef = str
"""A run: its id, at least RUN_PREFIX_CHARS_MIN of its first characters, `key:KEY`, or `@last`."""
RUN_PREFIX_CHARS_MIN: Final = 6
LAST_RUN: Final = "@last"
KEY_PREFIX: Final = "key:"


@dataclass(frozen=True, slots=True, eq=False)
class Act(Generic[Q, R]):
    name: str
    """`noun.verb`. The name on the wire, and of the audit action where there is one."""
    request: type[Q]
    reply: Any
    """The reply's type, for the codec. `None`: nothing is answered."""
    permission: Permission | None
    """None: any authenticated principal."""
    audits: tuple[str, ...] = ()
    """Actions that a successful call may write to the audit log. Empty: the act changes nothing."""
    changes_once: bool = False
    """An act with audit actions that has the effect of once when it is asked twice."""
    wait_s_max: float = 0.0
    """How long it may wait by design, beside what it does; a request with `wait_s` may ask for less."""
    once_by: str = ""
    """Field of the request that holds a key of the sender's own, with which the act has its effect once."""

    def wait_s(self, request: Q) -> float:
        """How long this request may wait by design."""
        return min(self.wait_s_max, getattr(request, "wait_s", self.wait_s_max))

    def is_repeatable(self, request: Q) -> bool:
        """Whether a client may ask again after a broken connection."""
        return self.changes_once or not self.audits or bool(self.once_by and getattr(request, self.once_by))
