"""Names of calendars of public holidays: `holidays:DE`, `holidays:DE-BY`, `holidays:US-CA`.

Only the name is known here. The days come from a package (engine/holiday_calendars.py) and are stored like those of any other calendar when a
schedule names it, so what fires is computed from stored days alone, the same on every engine and by every release of the package.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from perdure.core.errors import InvalidInput

HOLIDAYS: Final = "holidays:"
"""What these names begin with. No other calendar may be called so."""
_PLACE = re.compile(r"([A-Z]{2})(?:-([A-Za-z0-9][A-Za-z0-9 -]{0,39}))?")


class HolidayPlace(msgspec.Struct, frozen=True):
    country: str
    """ISO 3166-1: DE."""
    subdivision: str | None
    """The second part of ISO 3166-2: BY. None: what the whole country has in common."""


def is_holidays(calendar: str) -> bool:
    return calendar.startswith(HOLIDAYS)


def holiday_place(calendar: str) -> HolidayPlace:
    """Raises InvalidInput for a name that is none of a country or a part of one."""
    found = _PLACE.fullmatch(calendar.removeprefix(HOLIDAYS))
    if not is_holidays(calendar) or found is None:
        raise InvalidInput(
            f"{calendar!r} names no public holidays: write holidays: and the code of a country, holidays:DE, "
            "or of a part of it, holidays:DE-BY"
        )
    return HolidayPlace(found[1], found[2])
