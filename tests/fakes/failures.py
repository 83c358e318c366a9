"""One test over many items of a table or a text: it lists all that fail, where a plain loop would stop at the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self


class Failures:
    """Collects what fails, item by item, and raises all of it as one error at the end of the block.

        with Failures() as failures:
            for page in pages:
                with failures.of(page.name):
                    assert page.title

    A block that checked no item fails too: a glob that finds nothing would pass every test.
    """

    def __init__(self) -> None:
        self._checked = 0
        self._found: list[str] = []

    @contextmanager
    def of(self, item: object) -> Iterator[None]:
        """Checks one item. An error of any kind is its failure, so that the items after it are checked as well."""
        self._checked += 1
        try:
            yield
        except AssertionError as error:
            self._found.append(f"{item}: {error}")
        except Exception as error:
            self._found.append(f"{item}: {type(error).__name__}: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        assert self._checked, "no item was checked"
        if self._found:
            listed = "\n\n".join(self._found)
            raise AssertionError(f"{len(self._found)} of {self._checked} items fail:\n\n{listed}")
