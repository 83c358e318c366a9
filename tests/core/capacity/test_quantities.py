"""Numbers as people write them."""

from __future__ import annotations

import pytest

from perdure.core.capacity.quantities import bytes_of, count_of, weights_of
from perdure.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250000", 250_000),
        ("250k", 250_000),
        ("1_000", 1_000),
        ("1,000", 1_000),
        ("2.5M", 2.5e6),
        ("1B", 1e9),
        ("1e9", 1e9),
    ],
)
def test_counts(text: str, value: float) -> None:
    assert count_of(text) == value


@pytest.mark.parametrize(("text", "value"), [("800", 800), ("4kB", 4_000), ("64KiB", 65_536), ("1.5 MB", 1.5e6)])
def test_sizes(text: str, value: float) -> None:
    assert bytes_of(text) == value


def test_weights() -> None:
    assert weights_of("1,1,2") == [1, 1, 2]
    assert weights_of("1x3, 0.5x2") == [1, 1, 1, 0.5, 0.5]


@pytest.mark.parametrize("text", ["", "many", "1T", "-5", "1e999"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a number"):
        count_of(text)


def test_what_is_no_size_or_weight_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not a size"):
        bytes_of("4 litres")
    with pytest.raises(InvalidInput, match="is not a list of weights"):
        weights_of("1,x2")
