"""Notifications by email, over SMTP.

    smtp://user:password@host:587     STARTTLS where the server offers it
    smtps://user:password@host:465    TLS from the beginning

The Message-ID follows from the notification's id: an email that is sent twice is the same email.
"""

from __future__ import annotations

from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from perdure.core.application_limits import NOTIFY_TIMEOUT_S
from perdure.core.durations import datetime_of
from perdure.core.errors import InvalidInput
from perdure.core.notifications import Notice, headline, plain_text

PORTS: Final = {"smtp": 587, "smtps": 465}
MISSING: Final = "email needs the package aiosmtplib, which is not installed on this server: install perdure[mail]"
NO_SERVER: Final = "this server has no email server: set PERDURE_SMTP_URL and PERDURE_SMTP_FROM"


class EmailServer(msgspec.Struct, frozen=True):
    host: str
    port: int
    user: str
    password: str
    is_tls: bool
    """From the beginning."""


def parse_server(url: str) -> EmailServer:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in PORTS or not parts.hostname:
        raise InvalidInput("the email server is no URL: write smtp://user:password@host:587 or smtps://host:465")
    return EmailServer(
        parts.hostname,
        port or PORTS[parts.scheme],
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        parts.scheme == "smtps",
    )


class EmailSender:
    def __init__(self, url: str, sender: str) -> None:
        self._server = parse_server(url) if url else None
        self._sender = sender

    async def send(self, to: str, notice: Notice) -> None:
        if self._server is None or not self._sender:
            raise InvalidInput(NO_SERVER)
        try:
            import aiosmtplib
        except ImportError:
            raise InvalidInput(MISSING) from None
        at = self._server
        await aiosmtplib.send(
            message_of(notice, self._sender, to),
            hostname=at.host,
            port=at.port,
            username=at.user or None,
            password=at.password or None,
            use_tls=at.is_tls,
            timeout=NOTIFY_TIMEOUT_S,
        )


def message_of(notice: Notice, sender: str, to: str) -> EmailMessage:
    email = EmailMessage()
    email["From"], email["To"] = sender, to
    email["Subject"] = headline(notice)
    email["Date"] = format_datetime(datetime_of(notice.at_us))
    email["Message-ID"] = f"<{notice.id}@{sender.rpartition('@')[2].rstrip('>') or 'perdure'}>"
    email["Auto-Submitted"] = "auto-generated"
    email.set_content(plain_text(notice))
    return email
