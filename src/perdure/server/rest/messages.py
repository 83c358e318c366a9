"""Messages into a run: signals and promise values. The body is the value, any JSON; no body is null."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response

from perdure.core import ids
from perdure.core.access import Permission
from perdure.core.errors import InvalidInput, RunFinished
from perdure.core.limits import MESSAGE_KEY_CHARS_MAX, NAME_CHARS_MAX, SUCCESSORS_MAX
from perdure.core.messages import SignalSent
from perdure.server.rest import views
from perdure.server.rest.guard import Caller, GuardedRoute, Operator
from perdure.server.rest.problems import IdempotencyConflict, responses
from perdure.server.rest.run_lookup import RunName, resolve
from perdure.server.rest.runs import audit
from perdure.wire.codec import encode_mail

IDEMPOTENCY_KEY_CHARS_MAX: Final = 150

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=IDEMPOTENCY_KEY_CHARS_MAX,
        description="A text of your own for this request: sent twice under the same one, it has its effect once.",
    ),
]
MessageName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)]
ANY_JSON: Final = {
    "requestBody": {"description": "The value.", "content": {"application/json": {"schema": {}, "example": {"approved": True}}}}
}  # fmt: skip

router = APIRouter(prefix="/runs", tags=["messages"], route_class=GuardedRoute)


@router.post("/{id}/signals/{name}", status_code=202, response_class=Response, openapi_extra=ANY_JSON, responses=responses(401, 403, 404, 409, 413, 422))  # fmt: skip
async def send_signal(
    request: Request,
    caller: Operator,
    id: RunName,
    name: MessageName,
    key: Annotated[str, Query(max_length=MESSAGE_KEY_CHARS_MAX, description="The message's own key: a second message to this run under it, by whatever way, is the first one.")] = "",
    idempotency_key: IdempotencyKey = None,
) -> Response:  # fmt: skip
    """Send a signal. Answered once it is durable; a run that continued as new is followed."""
    run_id = await resolve(caller, id)
    mail = SignalSent(name, views.payload(request.state.value, f"the signal {name!r}"))
    if key or idempotency_key is None:
        sent = await caller.use.post(run_id, mail, key)
    else:
        sent = await _post_once(caller, run_id, mail, check_key(idempotency_key))
    if sent:
        await audit(caller, "run.signal", run_id, name=name)
    return Response(status_code=202)


async def _post_once(caller: Caller, run_id: bytes, mail: SignalSent, key: str) -> bool:
    """The key and the message are written together or not at all. False when an earlier request has sent it."""
    wanted = digest("signal", run_id, mail.name, mail.value)
    target = run_id
    for _ in range(SUCCESSORS_MAX):
        posted = await caller.server.registry.post_once(caller.ns, f"signal:{key}", wanted, target, encode_mail(mail))
        if posted.sent:
            caller.use.posted(target)
            return True
        if posted.held is not None:
            check_same(key, posted.held, wanted)
            return False
        view = await caller.use.describe(target)
        if view.successor is None:
            raise RunFinished(f"run {ids.text(run_id)} has ended and takes no more messages")
        target = view.successor
    raise RunFinished("the run was continued too many times to follow")


@router.post("/{id}/promises/{name}", status_code=202, response_class=Response, openapi_extra=ANY_JSON, responses=responses(401, 403, 404, 409, 413, 422))  # fmt: skip
async def resolve_promise(request: Request, caller: Operator, id: RunName, name: MessageName) -> Response:
    """Give a promise its value. The first value stands; a second one is refused."""
    run_id = await resolve(caller, id)
    await caller.server.approvals.check_resolve(caller.use, run_id, name, caller.principal)
    value = views.payload(request.state.value, f"the promise {name!r}")
    await caller.use.resolve(run_id, name, value, sure=caller.principal.may(Permission.ADMIN))
    await audit(caller, "run.resolve", run_id, name=name)
    return Response(status_code=202)


# -- idempotency keys ----------------------------------------------------------------------------------------------


def check_key(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise InvalidInput("Idempotency-Key: use printable ASCII characters")
    return key


def digest(*parts: Any) -> bytes:
    """Of a request, to tell a repetition from a mistake."""
    state = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        state.update(len(data).to_bytes(8, "big") + data)
    return state.digest()


def check_same(key: str, held: bytes, wanted: bytes) -> None:
    if held != wanted:
        raise IdempotencyConflict(
            f"the idempotency key {key!r} was used for a different request; use a new key for a new request"
        )
