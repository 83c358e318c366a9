"""Composition of the outbox."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.app.secret_box import SecretBox, parse_keys
from perdure.app.senders.sender import TargetSender
from perdure.app.senders.settings import NotifySettings
from perdure.engine.api.api import Api
from perdure.engine.api.hook_runs import HookRuns
from perdure.engine.services.outbox import OutboxService


def outbox(api: Api, settings: NotifySettings) -> OutboxService:
    """Hooks are started by every engine; notifications are delivered by those that the settings let."""
    sender = TargetSender(settings, api.ports.secrets, lambda: api.public_url) if settings.is_on else None
    return OutboxService(api.engine, api.ports.outbox, sender, HookRuns(api), timeout_s=settings.timeout_s)


def secret_box(environ: Mapping[str, str]) -> SecretBox:
    keys = environ.get("PERDURE_SECRET_KEY", "")
    return SecretBox(parse_keys(keys) if keys else ())
