"""`perdure explain CODE`: the page of an error code, without a browser."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import Annotated, Any, Final

import typer

from perdure.core.errors import PerdureError

WIDTH_MAX: Final = 100


def register(app: typer.Typer) -> None:
    app.command()(explain)


def explain(
    code: Annotated[
        str | None, typer.Argument(help="The code, such as run_failed. Default: list all.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain an error code: what happened, why, what to do.

    Errors of commands, of the REST API, of histories and of logs have a code.
    With PERDURE_DOCS_URL set to the address of the documentation, links to it are printed.
    """
    from perdure.server import error_guide as guide

    if as_json:
        codes = list(guide.explanations()) if code is None else [code.strip().lower()]
        found = [described(known) for known in codes]
        print(json.dumps(found if code is None else found[0]))
    elif code is None:
        width = max(map(len, guide.explanations()))
        for known in guide.explanations():
            print(f"{known:<{width}}  {guide.meaning(known)}")
    else:
        _page(code.strip().lower())


def described(code: str) -> dict[str, Any]:
    from perdure.server import error_guide as guide

    found, kinds = guide.explanation(code), guide.classes().get(code, [])
    statuses = {"http_status": kinds[0].http_status, "exit_code": kinds[0].exit_code} if kinds else {}
    texts = {"why": found.why, "do": guide.without_links(found.do)[0], "example": found.example}
    return {"code": code, "meaning": guide.meaning(code), **statuses, **texts}


def _page(code: str) -> None:
    from perdure.server import error_guide as guide

    found = guide.explanation(code)
    advice, pages = guide.without_links(found.do)
    kinds = guide.classes().get(code, [])
    print(f"{code}  {doors(kinds[0]) if kinds else ''}".rstrip())
    for part in (guide.meaning(code) if kinds else "", found.why, advice):
        if part:
            print(f"\n{_wrapped(part)}")
    print("\nFor example:" if not found.yours else "\nFor example, with the words of your own code:")
    for line in found.example.splitlines():
        print(_wrapped(line, "    "))
    print("\nIn the documentation:")
    for path in (guide.error_page(code), *pages):
        print(f"  {guide.docs_address(path)}")


def doors(kind: type[PerdureError]) -> str:
    """How the error is answered. One with HTTP status 500 does not leave a server by its own code."""
    statuses = f"HTTP {kind.http_status}, gRPC {kind.grpc_status}, " if kind.http_status != 500 else ""
    return f"{statuses}exit code {kind.exit_code}"


def _wrapped(text: str, indent: str = "") -> str:
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
