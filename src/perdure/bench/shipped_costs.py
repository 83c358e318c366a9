"""Measured costs as JSON: those that come with this version, and files that `perdure bench costs --json` wrote."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from perdure.core.capacity.costs import MeasuredCosts
from perdure.core.errors import InvalidInput

SHIPPED: Final = "costs.json"


def shipped_costs() -> MeasuredCosts:
    return msgspec.json.decode((resources.files("perdure.bench") / SHIPPED).read_bytes(), type=MeasuredCosts)


def read_costs(file: Path) -> MeasuredCosts:
    try:
        return msgspec.json.decode(file.read_bytes(), type=MeasuredCosts)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{file} does not hold measured costs ({error}): write it by `perdure bench costs --json > {file}`"
        ) from None
