"""From what people call a run to its id: the id, the beginning of one, `key:<key>` or `@last`. Only within their namespace."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Path

from perdure.core import ids
from perdure.core.errors import Conflict, NotFound
from perdure.core.limits import NAME_CHARS_MAX
from perdure.engine.api.reads import CANDIDATES_MAX, RunDetail
from perdure.server.rest.guard import Caller

PREFIX_CHARS_MIN: Final = 6
LAST: Final = "@last"
KEY: Final = "key:"
_HEX = re.compile(r"[0-9a-fA-F]{1,32}")

RunName = Annotated[
    str,
    Path(
        description="A run's id, six or more of its first characters, `key:` and the id its starter gave it, or `@last`.",
        min_length=1,
        max_length=NAME_CHARS_MAX + len(KEY),
        examples=["0192a6f0-5c1e-7000-8123-0123456789ab", "0192a6f05c", "key:order-42", "@last"],
    ),
]


async def resolve(caller: Caller, name: str) -> bytes:
    """NotFound for what is not there or belongs to others; Conflict for a beginning that fits several runs."""
    if name == LAST:
        newest = await caller.server.reads.newest(caller.ns)
        if newest is None:
            raise NotFound("there is no run in this namespace yet")
        return newest
    if name.startswith(KEY):
        return await caller.use.run_of(name.removeprefix(KEY))
    digits = name.replace("-", "")
    if not _HEX.fullmatch(digits) or len(digits) < PREFIX_CHARS_MIN:
        raise NotFound(
            f"{name[:50]!r} names no run: give an id, at least {PREFIX_CHARS_MIN} of its first characters, key:<its own id>, or {LAST}"
        )
    return await _by_prefix(caller, name, digits)


async def _by_prefix(caller: Caller, name: str, digits: str) -> bytes:
    low, high = bytes.fromhex(digits.ljust(32, "0")), bytes.fromhex(digits.ljust(32, "f"))
    found = await caller.server.reads.find(caller.ns, low, high, CANDIDATES_MAX + 1)
    if not found:
        raise NotFound(f"no run {name} in this namespace")
    if len(found) > 1:
        named = ", ".join(ids.text(run_id) for run_id in found[:CANDIDATES_MAX])
        more = ", and more" if len(found) > CANDIDATES_MAX else ""
        raise Conflict(f"{name} is the beginning of several runs: {named}{more}; give more of it")
    return found[0]


async def detail_of(caller: Caller, run_id: bytes) -> RunDetail:
    found = await caller.server.reads.detail(caller.ns, run_id)
    if found is None:
        raise NotFound(f"no run {ids.text(run_id)} in this namespace")
    return found
