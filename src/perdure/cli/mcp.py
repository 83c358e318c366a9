"""`perdure mcp`: tools for agents, over the Model Context Protocol."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from perdure.cli.remote_options import Remote, remote_silent
from perdure.core.packages import missing

CALL_S_DEFAULT: Final = 30.0
"""How long a tool may wait for the server; clients of the protocol give up after a minute."""


def register(app: typer.Typer) -> None:
    app.command()(mcp)


@remote_silent
def mcp(
    server: Remote,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Also serve the tools that change something. Default: reading only.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="TOOL", help="Also serve this one of them: start_run, ...; repeatable."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, max=600, help="How long a call may take.")
    ] = CALL_S_DEFAULT,
) -> None:
    """Serve runs to agents as tools, over the Model Context Protocol.

    Speaks the protocol on stdin and stdout, and logs to stderr. A client starts it: claude mcp add perdure -- perdure mcp

    What a tool may do is up to the API key as well: a viewer's key changes nothing.
    """

    try:
        from perdure.mcp.serving import chosen_tools, serve_stdio
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        raise missing("perdure mcp", "mcp") from None
    tools = chosen_tools(None if allow_changes else allow or [])
    changes = sum(tool.is_change for tool in tools.values())
    print(f"perdure mcp: {len(tools)} tools, {changes} of them change something", file=sys.stderr, flush=True)
    if sys.stdin.isatty():
        print("It waits for a client of the protocol, which starts it by itself. Ctrl-C ends it.", file=sys.stderr)
    serve_stdio(tools, lambda: server.connect(answer_s=timeout, tries=1))
