"""What a person needs to know about an error code: `perdure explain CODE`, the page /errors of a server, docs/reference/errors.

The words are in errors.toml, the statuses in the error classes. A code without a class is one that is recorded in a history.
"""

from __future__ import annotations

import os
import re
import tomllib
from difflib import get_close_matches
from functools import cache
from importlib import import_module, resources
from typing import Final

import msgspec

from perdure.core.errors import NotFound, PerdureError, error_classes

DOCS_URL: Final = "PERDURE_DOCS_URL"
"""Variable with the address of a documentation site, such as https://docs.example.org/perdure. Then errors link to its pages."""

# Where classes of errors are that a client only knows by their code.
_HOMES: Final = (
    "perdure.app.secret_box",
    "perdure.errors",
    "perdure.programs.http_client",
    "perdure.programs.modules",
    "perdure.server.auth.authenticator",
    "perdure.server.auth.web_sessions",
    "perdure.server.rest.browsers",
    "perdure.server.rest.problems",
)
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


class Explanation(msgspec.Struct, frozen=True):
    why: str
    do: str
    example: str
    """A message as it is really printed."""
    yours: bool = False
    """The message comes from the user's code."""


@cache
def explanations() -> dict[str, Explanation]:
    """By code, sorted."""
    text = (resources.files("perdure.server") / "errors.toml").read_text(encoding="utf-8")
    return msgspec.convert(dict(sorted(tomllib.loads(text).items())), dict[str, Explanation])


@cache
def classes() -> dict[str, list[type[PerdureError]]]:
    """The classes of each code, those that users can import first."""
    for home in _HOMES:
        import_module(home)
    found: dict[str, list[type[PerdureError]]] = {}
    for kind in sorted(error_classes(), key=lambda kind: kind.__module__ != "perdure.errors"):
        found.setdefault(kind.code, []).append(kind)
    return found


def explanation(code: str) -> Explanation:
    if found := explanations().get(code):
        return found
    near = get_close_matches(code, explanations(), n=1)
    hint = f"did you mean {near[0]}?" if near else "`perdure explain` lists the codes"
    raise NotFound(f"there is no error code {code!r}; {hint}")


def meaning(code: str) -> str:
    """What the code means, in one line."""
    kinds = classes().get(code)
    return kinds[0].meaning() if kinds else explanation(code).why.partition(". ")[0].rstrip(".") + "."


def docs_address(path: str) -> str:
    """Where a page of docs/ is on the documentation site; its name there if the site has no address."""
    page, hash_, anchor = path.partition("#")
    name = page.removesuffix(".md")
    base = os.environ.get(DOCS_URL, "").rstrip("/")
    return f"{base}/{name}/{hash_}{anchor}" if base else name


def error_page(code: str) -> str:
    """Path of the page of a code below docs/."""
    return f"reference/errors/{code}.md"


def without_links(text: str) -> tuple[str, list[str]]:
    """A text with the words of its links, and the pages that they lead to."""
    pages = [target for _, target in _LINK.findall(text)]
    return re.sub(r"\s*See \[[^\]]*\]\([^)]*\)\.", "", text) if pages else text, pages
