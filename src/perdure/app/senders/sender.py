"""The Sender port: picks the way that a rule's target needs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.app.senders.email_sender import EmailSender
from perdure.app.senders.settings import NotifySettings
from perdure.app.senders.web import WebSender
from perdure.core import ids
from perdure.core.errors import InvalidInput
from perdure.core.notifications import Notice
from perdure.engine.api.notifications import owner_of
from perdure.engine.api.ports import SecretSealer
from perdure.engine.services.outbox import Delivery


class TargetSender:
    def __init__(self, settings: NotifySettings, secrets: SecretSealer, public_url: Callable[[], str]) -> None:
        self._web = WebSender(settings.allow)
        self._email = EmailSender(settings.smtp_url, settings.smtp_from)
        self._secrets, self._public_url = secrets, public_url

    async def close(self) -> None:
        await self._web.close()

    async def send(self, delivery: Delivery) -> None:
        notice = self._with_link(delivery.notice)
        if delivery.target == "email":
            await self._email.send(delivery.address, notice)
        elif delivery.target == "webhook":
            await self._web.send_webhook(delivery.address, self._secret(delivery), notice)
        elif delivery.target == "slack":
            await self._web.send_chat(self._secret(delivery), notice)
        else:
            raise InvalidInput(f"this version of Perdure has no target {delivery.target!r}: upgrade this server")

    def _with_link(self, notice: Notice) -> Notice:
        base = self._public_url().rstrip("/")
        if not base or notice.run_id is None:
            return notice
        return msgspec.structs.replace(notice, url=f"{base}/runs/{ids.text(notice.run_id)}")

    def _secret(self, delivery: Delivery) -> str:
        return self._secrets.open(delivery.secret or b"", owner_of(delivery.ns, delivery.notice.rule)).decode()
