"""Bounds at the border to applications: secrets and notifications. Those of runs are in limits.py."""

from __future__ import annotations

from typing import Final

SECRET_NAME_CHARS_MAX: Final = 128
"""Characters of a secret's name."""
SECRET_CHARS_MIN: Final = 8
"""Characters of a secret's value, at least: shorter ones would mask ordinary text, and refuse ordinary results."""
SECRET_BYTES_MAX: Final = 64 * 1024
"""Bytes of a secret's value."""
SECRETS_PER_TASK_MAX: Final = 100
"""Places of one task of a flow that secrets stand in, and secrets that one attempt reads."""
SECRETS_KNOWN_MAX: Final = 256
"""Values of secrets that a worker masks: those that its tasks read last."""
SECRETS_CACHED_MAX: Final = 256
"""Secrets whose values a worker keeps for SECRET_CACHE_S."""
SECRET_CACHE_S: Final = 15.0
"""Seconds for which a worker uses a value that it has read: a rotated secret is used after this long at most."""
SECRET_PROVIDERS_MAX: Final = 10
"""Providers of secrets that one worker asks."""
SECRET_CALL_S: Final = 10.0
"""Seconds that one call of a provider may take."""
SECRET_CALLS_MAX: Final = 16
"""Calls of providers under way at a time in one worker, those that hang included."""
NOTIFY_RULES_MAX: Final = 100
"""Notification rules of one namespace."""
NOTIFY_WORKFLOWS_MAX: Final = 100
"""Workflows that one notification rule names."""
NOTIFY_URL_CHARS_MAX: Final = 2_000
"""Characters of the URL that notifications are sent to."""
NOTIFY_ATTEMPTS_MAX: Final = 80
"""Attempts to deliver a notification, over about three days; then it is dead."""
NOTIFY_PAUSE_S_MAX: Final = 3_600
"""Seconds between two attempts to deliver a notification, at most."""
NOTIFY_PENDING_MAX: Final = 10_000
"""Notifications of one rule that wait for delivery. The oldest beyond it are dropped and counted."""
NOTIFY_KEPT_S: Final = 14 * 86_400
"""Seconds for which a delivered or dead notification is kept."""
NOTIFY_TIMEOUT_S: Final = 15
"""Seconds that one attempt to deliver a notification may take."""
NOTIFY_AT_ONCE_MAX: Final = 8
"""Notifications of one rule that one engine delivers at the same time; the others wait, so a slow target delays only its own."""
NOTIFY_DELIVERIES_MAX: Final = 256
"""Notifications that one engine delivers at the same time."""
NOTIFY_ANSWER_BYTES_MAX: Final = 64 * 1024
"""Bytes that are read of a receiver's answer."""
EMAIL_ADDRESSES_MAX: Final = 20
"""Email addresses of one notification rule."""
EMAIL_CHARS_MAX: Final = 4_000
"""Characters of an error in an email or a chat message."""
SQL_REQUEST_TRIES_MAX: Final = 20
"""Times that engines try to carry out what perdure.start, perdure.signal or perdure.emit asked for."""
SQL_REQUESTS_KEPT_S: Final = 7 * 86_400
"""Seconds for which a request in SQL that could not be carried out is kept."""
