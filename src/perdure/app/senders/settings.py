"""How one process delivers notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from perdure.app import setting_values as values
from perdure.app.senders.email_sender import parse_server
from perdure.core.application_limits import NOTIFY_TIMEOUT_S
from perdure.core.durations import to_us
from perdure.core.egress import Egress
from perdure.core.errors import InvalidInput


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True):
    is_on: bool = True
    """Whether this process delivers notifications."""
    allow: Sequence[str] = ()
    """Hosts and networks beside the public internet."""
    smtp_url: str = ""
    smtp_from: str = ""
    timeout_s: float = NOTIFY_TIMEOUT_S
    """Of one attempt."""

    def check(self) -> None:
        Egress(self.allow)
        if not 0 < self.timeout_s <= NOTIFY_TIMEOUT_S:
            raise InvalidInput(
                f"the timeout of notifications is {self.timeout_s:g} s; it lies above 0 and is at most NOTIFY_TIMEOUT_S={NOTIFY_TIMEOUT_S}"
            )
        if self.smtp_url:
            parse_server(self.smtp_url)
            if not self.smtp_from:
                raise InvalidInput("smtp_url is set and smtp_from is not: emails need a sender's address")


def notify_settings(environ: Mapping[str, str]) -> NotifySettings:
    """Of an embedded program: the variables that a server has too."""
    found = NotifySettings(
        is_on=values.switch(environ.get("PERDURE_NOTIFICATIONS") or "on"),
        allow=values.words(environ.get("PERDURE_NOTIFY_ALLOW", "")),
        smtp_url=environ.get("PERDURE_SMTP_URL", ""),
        smtp_from=environ.get("PERDURE_SMTP_FROM", ""),
        timeout_s=to_us(environ.get("PERDURE_NOTIFY_TIMEOUT") or NOTIFY_TIMEOUT_S) / 1e6,
    )
    found.check()
    return found
