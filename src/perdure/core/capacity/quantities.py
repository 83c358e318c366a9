"""Numbers as people write them: `10M` runs, `4kB` of payload, `1/2` of them."""

from __future__ import annotations

import math
import re
from typing import Final

from perdure.core.errors import InvalidInput

_COUNT: Final = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([kMGB]?)")
_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(B|kB|KB|KiB|MB|MiB|GB|GiB)?")
_TIMES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
_SIZES: Final = {"B": 1, "kB": 1e3, "KB": 1e3, "KiB": 2**10, "MB": 1e6, "MiB": 2**20, "GB": 1e9, "GiB": 2**30}


def count_of(text: str) -> float:
    found = _COUNT.fullmatch(text.strip())
    if found is None or not math.isfinite(value := float(re.sub("[_,]", "", found[1])) * _TIMES[found[2]]):
        raise InvalidInput(f"{text!r} is not a number: write 250000, 250k, 10M, 1B or 1e9")
    return value


def bytes_of(text: str) -> float:
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"{text!r} is not a size: write 800, 4kB, 64KiB or 1MB")
    return float(found[1]) * _SIZES[found[2] or "B"]


def weights_of(text: str) -> list[float]:
    """`1,1,2` or `1x8,2x4`: weights of shards, and how many shards have them."""
    weights: list[float] = []
    for part in text.split(","):
        weight, _, times = part.strip().partition("x")
        try:
            weights += [float(weight)] * (int(times) if times else 1)
        except ValueError:
            raise InvalidInput(
                f"{text!r} is not a list of weights: write 1,1,2, or 1x8,2x4 for eight of weight 1 and four of weight 2"
            ) from None
    return weights
