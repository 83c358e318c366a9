"""Bounds of retention, exports and imports. Those of runs are in limits.py."""

from __future__ import annotations

from typing import Final

RETENTION_DAYS_DEFAULT: Final = 90.0
"""Days for which ended runs are kept, where no policy and no setting says otherwise."""
RETENTION_DAYS_MIN: Final = 1 / 24
"""The shortest time for which a policy keeps ended runs: an hour."""
RETENTION_POLICIES_MAX: Final = 1_000
"""Retention policies of one namespace."""
RETENTION_CARRIED_RUNS_MAX: Final = 2_000
"""Ended runs that are moved out of a day so that it can be dropped. If a day keeps more, its expired runs are deleted one by one."""
RETENTION_DELETED_RUNS: Final = 200
"""Runs that one transaction of retention deletes."""
RETENTION_PAUSE_S_MAX: Final = 5.0
"""Seconds between two pieces of work of a retention job."""
EXPORT_PAGE_RUNS: Final = 500
"""Runs that an export reads at a time."""
EXPORT_PART_RUNS: Final = 20_000
"""Runs in one object of an export."""
EXPORT_PART_BYTES: Final = 32 * 1024 * 1024
"""Bytes after which an object of an export is full."""
IMPORT_RUNS: Final = 200
"""Runs that one transaction of an import writes."""
IMPORT_HOLD_DAYS: Final = 30.0
"""Days for which retention leaves imported runs alone, unless the import says otherwise."""
