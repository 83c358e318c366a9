"""Schedules: when a workflow is to be started, as a function of what was asked for and nothing else.

    JSON or YAML --parse_spec--> ScheduleSpec --next_after, between--> nominal times --fire_at--> nominal time plus jitter
                                     ^                    due: which of them to fire now, by the policy for missed ones
    JSON or YAML --parse_calendar--> Calendar (a named set of local days)

A nominal time is the moment a schedule names, in Unix microseconds. It identifies the firing: however late it happens, and no matter which server
does it, there is one per nominal time. Nothing here reads a clock; `zoneinfo` is data.
"""

from __future__ import annotations

from perdure.core.schedules.calendars import Calendar, calendar_json, parse_calendar
from perdure.core.schedules.cron_words import cron_words, spec_words
from perdure.core.schedules.spec import MISSED, OVERLAPS, SPEC_KEYS, ScheduleSpec, parse_spec, spec_hash, spec_json
from perdure.core.schedules.times import ON_TIME_US, DueTimes, between, due, fire_at, next_after

__all__ = [
    "MISSED",
    "ON_TIME_US",
    "OVERLAPS",
    "SPEC_KEYS",
    "Calendar",
    "DueTimes",
    "ScheduleSpec",
    "between",
    "calendar_json",
    "cron_words",
    "due",
    "fire_at",
    "next_after",
    "parse_calendar",
    "parse_spec",
    "spec_hash",
    "spec_json",
    "spec_words",
]
