"""Data that was read from the database and could not be opened."""

from __future__ import annotations

from perdure.core.errors import PerdureError


class Unopened(bytes):
    """The sealed bytes, in place of their content, because their key is missing or they were changed. A reader that asks for them by name
    gets the error; a record that holds them is met where it is decoded, so that one such row does not keep others from being read."""

    error: PerdureError


def unopened(data: bytes, error: PerdureError) -> Unopened:
    made = Unopened(data)
    made.error = error
    return made
