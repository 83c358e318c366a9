"""Notifications over HTTP: Standard Webhooks with a CloudEvents body, and messages for incoming webhooks of chats.

Laws:

1. Only http and https, and only addresses of the public internet and those that the settings allow (core/egress.py). Redirects are not
   followed: they would carry the signed body to an address that the rule does not name.
2. A status of 200 to 299 confirms. Of the answer at most NOTIFY_ANSWER_BYTES_MAX are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perdure.core.application_limits import NOTIFY_ANSWER_BYTES_MAX, NOTIFY_PAUSE_S_MAX, NOTIFY_TIMEOUT_S
from perdure.core.egress import Egress
from perdure.core.errors import AddressRefused
from perdure.core.notifications import CONTENT_TYPE, Notice, cloud_event, slack_message
from perdure.core.packages import missing
from perdure.core.version import VERSION
from perdure.engine.services.outbox import Postponed, Rejected

if TYPE_CHECKING:
    import httpx2

GONE: Final = 410
"""The receiver wants no more."""
SAYS_WHEN: Final = frozenset({429, 503})
SHOWN_BYTES: Final = 200
"""Bytes of a refusal that the error shows."""


class WebSender:
    def __init__(self, allow: Sequence[str] = ()) -> None:
        self._egress = Egress(allow)  # a mistake in it stops the process, not the first notification
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def send_webhook(self, url: str, secret: str, notice: Notice) -> None:
        """The signature is over the id, the time of this attempt and the body, as standardwebhooks.com says."""
        from standardwebhooks.webhooks import Webhook

        body = msgspec.json.encode(cloud_event(notice)).decode()
        now = datetime.now(UTC)
        headers = {
            "content-type": CONTENT_TYPE,
            "webhook-id": notice.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign(notice.id, now, body),
        }
        await self._post(url, headers, body.encode())

    async def send_chat(self, url: str, notice: Notice) -> None:
        headers = {"content-type": "application/json"}
        await self._post(url, headers, msgspec.json.encode(slack_message(notice)))

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        client = self._open()
        try:
            async with client.stream("POST", url, content=body, headers=dict(headers)) as answer:
                shown = await _beginning(answer)
        except AddressRefused as error:
            raise AddressRefused(
                f"{error}. A server sends notifications only to the public internet unless PERDURE_NOTIFY_ALLOW names the host or network"
            ) from None
        if 200 <= answer.status_code < 300:
            return
        why = (
            f"the receiver answered {answer.status_code}: {shown}"
            if shown
            else f"the receiver answered {answer.status_code}"
        )
        if answer.status_code == GONE:
            raise Rejected(why)
        when = answer.headers.get("retry-after", "")
        if answer.status_code in SAYS_WHEN and when.isascii() and when.isdigit():
            raise Postponed(why, min(float(when), NOTIFY_PAUSE_S_MAX))
        raise ConnectionError(why)

    def _open(self) -> httpx2.AsyncClient:
        if self._client is None:
            try:
                import httpx2

                from perdure.executors.http.transport import CheckedTransport
            except ImportError as error:
                raise missing("a notification over HTTP", "webhooks") from error

            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(NOTIFY_TIMEOUT_S),
                transport=CheckedTransport(self._egress),
                headers={"user-agent": f"perdure/{VERSION}"},
                follow_redirects=False,
            )
        return self._client


async def _beginning(answer: Any) -> str:
    """Reads at most NOTIFY_ANSWER_BYTES_MAX; what comes after it is cut off with the connection."""
    read = 0
    first = b""
    async for part in answer.aiter_raw():
        first = (first + part)[:SHOWN_BYTES]
        read += len(part)
        if read > NOTIFY_ANSWER_BYTES_MAX:
            break
    return first.decode("utf-8", "replace").strip()
