"""Saved views: queries with a name, for everyone in a namespace."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    query: str
    updated_us: int
    updated_by: str


class SaveView(msgspec.Struct, frozen=True):
    """A view of this name is replaced."""

    name: str
    query: str


class ViewRef(msgspec.Struct, frozen=True):
    name: str


class ListViews(msgspec.Struct, frozen=True):
    after: str = ""
    limit: int = 50


class ViewPage(msgspec.Struct, frozen=True):
    items: list[SavedView]
    next: str | None


SAVE: Act[SaveView, SavedView] = Act("view.save", SaveView, SavedView, Permission.OPERATE, ("view.save",), True)
LIST: Act[ListViews, ViewPage] = Act("view.list", ListViews, ViewPage, Permission.READ)
DELETE: Act[ViewRef, None] = Act("view.delete", ViewRef, None, Permission.OPERATE, ("view.delete",))

ACTS = (SAVE, LIST, DELETE)
