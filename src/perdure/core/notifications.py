"""Notifications: what is sent to people and systems about runs, in the form of each target.

    fact (a run fails) -> row of the outbox, in the transaction of the fact -> attempts by any engine -> `done`, or `dead`

Laws:

1. A notification has one id, the same in every attempt and for every form: a receiver that sees it again has seen it before.
2. What is sent was written with the fact. A run that was retried or deleted since does not change it.
3. Attempts are bounded, and so are their pauses.
"""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from perdure.core import ids
from perdure.core.application_limits import (
    EMAIL_ADDRESSES_MAX,
    EMAIL_CHARS_MAX,
    NOTIFY_ATTEMPTS_MAX,
    NOTIFY_PAUSE_S_MAX,
    NOTIFY_URL_CHARS_MAX,
    NOTIFY_WORKFLOWS_MAX,
)
from perdure.core.durations import DURATION_US_MAX, datetime_of
from perdure.core.errors import InvalidInput, clip
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.names import checked_name, escaped
from perdure.core.suggestions import did_you_mean

Target = Literal["webhook", "email", "slack"]
TARGETS: Final = ("webhook", "email", "slack")
Status = Literal["pending", "done", "dead"]
STATUSES: Final = ("pending", "done", "dead")
KINDS: Final = (
    "run.failed",
    "run.succeeded",
    "run.cancelled",
    "run.stuck",
    "run.late",
    "run.deadline_missed",
    "approval.asked",
    "schedule.missed",
)
HOOK_KINDS: Final = ("hook.failed", "hook.success")
"""Rows of the outbox that start a run."""
LATE: Final = "run.late"
ANY_WORKFLOW: Final = "*"
TYPE_PREFIX: Final = "perdure."
CONTENT_TYPE: Final = "application/cloudevents+json"
FIRST_PAUSE_S: Final = 5.0
JITTER: Final = 0.25
"""Part of a pause by which it may be longer or shorter."""
SECRET_PREFIX: Final = "whsec_"
LATE_AFTER_US_MIN: Final = 1_000_000
_WHAT: Final = {
    "run.failed": "failed",
    "run.succeeded": "succeeded",
    "run.cancelled": "was cancelled",
    "run.stuck": "is stuck",
    "run.late": "is late",
    "run.deadline_missed": "missed its deadline",
    "approval.asked": "asks for approval",
    "schedule.missed": "missed a time of its schedule",
}


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One notification, as every form needs it."""

    id: str
    kind: str
    namespace: str
    workflow: str
    rule: str
    at_us: int
    data: dict[str, Any]
    """As it was written with the fact."""
    run_id: bytes | None = None
    url: str = ""
    """Page of the run; empty where this program knows no server."""

    @property
    def fields(self) -> dict[str, Any]:
        """What a receiver gets to know, with names that stay."""
        shown: dict[str, Any] = {"kind": self.kind, "namespace": self.namespace, "workflow": self.workflow}
        if self.run_id is not None:
            shown["run_id"] = ids.text(self.run_id)
        for name, value in self.data.items():
            if name.endswith("_us"):
                shown[name.removesuffix("_us") + "_at"] = moment_text(value)
            else:
                shown[name] = value
        if self.url:
            shown["url"] = self.url
        shown["rule"] = self.rule
        return shown


def moment_text(us: int) -> str:
    return datetime_of(us).astimezone(UTC).isoformat().replace("+00:00", "Z")


def cloud_event(notice: Notice) -> dict[str, Any]:
    """CloudEvents 1.0 in structured JSON mode."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": notice.id,
        "source": f"/perdure/namespaces/{notice.namespace}",
        "type": TYPE_PREFIX + notice.kind,
        "time": moment_text(notice.at_us),
        "datacontenttype": "application/json",
        "data": notice.fields,
    }
    if notice.run_id is not None:
        event["subject"] = ids.text(notice.run_id)
    return event


def headline(notice: Notice) -> str:
    """One line: `orders failed`."""
    return escaped(f"{notice.workflow} {_WHAT.get(notice.kind, notice.kind)}", keep="")


def plain_text(notice: Notice) -> str:
    """Lines for people."""
    data = notice.data
    lines = [f"{headline(notice)}."]
    if "title" in data:
        lines += ["", escaped(str(data["title"]))]
    if "error" in data:
        code = f"{data['error_code']}: " if "error_code" in data else ""
        lines += ["", escaped(clip(f"{code}{data['error']}", EMAIL_CHARS_MAX))]
    lines.append("")
    named = {
        "run": ids.text(notice.run_id) if notice.run_id is not None else None,
        "key": data.get("key"),
        "version": data.get("version"),
        "approval": data.get("approval"),
        "assignees": ", ".join(data["assignees"]) if data.get("assignees") else None,
        "schedule": data.get("schedule"),
        "namespace": notice.namespace,
        "at": moment_text(notice.at_us),
    }
    lines += [f"{name}: {escaped(str(value), keep='')}" for name, value in named.items() if value]
    if notice.url:
        lines += ["", notice.url]
    return "\n".join(lines) + "\n"


def slack_message(notice: Notice) -> dict[str, Any]:
    """The body of an incoming webhook. Slack reads &, < and > as markup."""
    text = plain_text(notice)
    if notice.url:
        text = text.removesuffix(f"\n{notice.url}\n")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"{text}\n<{notice.url}|Open the run>" if notice.url else text}


def pause_s(attempts: int, jitter: float) -> float:
    """Before the next attempt. `jitter` lies between -1 and 1."""
    return min(FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 30), NOTIFY_PAUSE_S_MAX) * (1 + JITTER * jitter)


def is_last(attempts: int) -> bool:
    return attempts >= NOTIFY_ATTEMPTS_MAX


def check_kinds(kinds: list[str], late_after_us: int | None) -> list[str]:
    if not kinds:
        raise InvalidInput(f"a notification rule names at least one kind: {', '.join(KINDS)}")
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidInput(
                f"{kind[:50]!r} is no kind of notification; these are: {', '.join(KINDS)}. {did_you_mean(kind, KINDS)}".strip()
            )
    if LATE in kinds and late_after_us is None:
        raise InvalidInput('run.late needs late_after: after what time a run is late, such as "1h"')
    if late_after_us is not None and not LATE_AFTER_US_MIN <= late_after_us <= DURATION_US_MAX:
        raise InvalidInput("late_after is at least one second and at most 100 years")
    return [kind for kind in KINDS if kind in kinds]


def check_workflows(workflows: list[str]) -> list[str]:
    if not 1 <= len(workflows) <= NOTIFY_WORKFLOWS_MAX:
        raise InvalidInput(
            f"a notification rule names 1 to NOTIFY_WORKFLOWS_MAX={NOTIFY_WORKFLOWS_MAX} workflows, or {ANY_WORKFLOW} for all"
        )
    if ANY_WORKFLOW in workflows:
        return [ANY_WORKFLOW]
    return sorted({checked_name("workflow", name) for name in workflows})


def check_url(url: str) -> str:
    """A URL that a notification can be sent to. Whether its address may be reached is decided when it is connected to."""
    if len(url) > NOTIFY_URL_CHARS_MAX:
        raise InvalidInput(f"the URL has more than NOTIFY_URL_CHARS_MAX={NOTIFY_URL_CHARS_MAX} characters")
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for one that is no number
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable:
        raise InvalidInput("the address is no URL: write https://host/path")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("the URL holds a user or a password, which every viewer would see: leave it out")
    return url


def check_email(text: str) -> str:
    """Email addresses, separated by commas."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    if not 1 <= len(found) <= EMAIL_ADDRESSES_MAX:
        raise InvalidInput(f"give 1 to EMAIL_ADDRESSES_MAX={EMAIL_ADDRESSES_MAX} email addresses, separated by commas")
    for one in found:
        user, at, host = one.rpartition("@")
        plain = one.isascii() and one.isprintable() and not any(c in ' "<>(),;:\\[]' for c in one)
        if not (at and user and host and plain and len(one) <= NAME_CHARS_MAX):
            raise InvalidInput(f"{one[:50]!r} is no email address: write name@host")
    return ", ".join(found)


def host_of(url: str) -> str:
    """What may be shown of a URL that is a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/…"
