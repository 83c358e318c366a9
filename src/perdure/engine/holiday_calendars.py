"""Calendars of public holidays: from the package `holidays` into the store, when a schedule names one for the first time.

Laws:

1. The package is read when a schedule is applied, a spec is previewed or a calendar is set, never when something fires. From then on the stored
   days count, on every engine and with every release of the package, until the calendar is set again.
2. A calendar that is stored already is not computed again, so an engine with another release of the package changes nothing by the way.
3. A calendar is stored before what names it. A crash in between leaves a calendar that no schedule uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perdure.core.errors import InvalidInput
from perdure.core.limits import HOLIDAYS_YEAR_FIRST, HOLIDAYS_YEAR_LAST
from perdure.core.packages import install_command
from perdure.core.schedules import Calendar, ScheduleSpec, parse_calendar
from perdure.core.schedules.holidays import holiday_place, is_holidays
from perdure.core.suggestions import did_you_mean
from perdure.flows.scheduled import spec_calendars

if TYPE_CHECKING:
    from perdure.engine.services.schedules import ScheduleStore


async def ensure_stored(store: ScheduleStore, ns: int, specs: Iterable[ScheduleSpec], by: str) -> None:
    """Store the calendars of public holidays that specs name and the namespace does not have yet."""
    for name in await _missing(store, ns, specs):
        await store.put_calendar(ns, name, await computed(name), by)


async def previewed(store: ScheduleStore, ns: int, spec: ScheduleSpec) -> dict[str, Calendar]:
    """The calendars of a spec. Those of public holidays that are not stored are computed, and still not stored."""
    new = {name: await computed(name) for name in await _missing(store, ns, [spec])}
    return {**await store.calendars(ns, [name for name in spec_calendars(spec) if name not in new]), **new}


async def computed(name: str) -> Calendar:
    """In a thread: the first look at a country takes some time."""
    return await asyncio.to_thread(holiday_calendar, name)


async def _missing(store: ScheduleStore, ns: int, specs: Iterable[ScheduleSpec]) -> list[str]:
    names = dict.fromkeys(name for spec in specs for name in spec_calendars(spec) if is_holidays(name))
    return [name for name in names if await store.calendar(ns, name) is None]


def holiday_calendar(name: str) -> Calendar:
    """The public holidays from HOLIDAYS_YEAR_FIRST to HOLIDAYS_YEAR_LAST, observed days included, as far as the package knows them."""
    place = holiday_place(name)
    try:
        import holidays  # noqa: PLC0415 - an extra, read when it is used
    except ImportError:
        raise InvalidInput(
            f"the calendar {name} needs a package on the server: {install_command('holidays')}, then restart it"
        ) from None
    known: dict[str, list[str]] = holidays.list_supported_countries()
    if place.country not in known:
        raise InvalidInput(f"{name}: the package holidays knows no country {place.country}")
    if place.subdivision is not None and place.subdivision not in known[place.country]:
        parts = known[place.country]
        near = did_you_mean(place.subdivision, parts) or (f"it knows {', '.join(parts[:20])}" if parts else "")
        raise InvalidInput(
            f"{name}: the package holidays knows no part {place.subdivision} of {place.country}{f'; {near}' if near else ''}"
        )
    years = range(HOLIDAYS_YEAR_FIRST, HOLIDAYS_YEAR_LAST + 1)
    found = holidays.country_holidays(place.country, subdiv=place.subdivision, years=years)
    return parse_calendar({"dates": [day for day in sorted(found) if day.year in years]})
