"""`perdure login` and `perdure logout`: a credential for the commands of this machine, kept per server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.remote_options import SERVER

if TYPE_CHECKING:
    from perdure.programs.credentials import Credential

KEY_CHARS_MAX = 8_192

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="PERDURE_URL",
        rich_help_panel=SERVER,
        help="Server. Default: PERDURE_URL, or the local server.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(login)
    app.command()(logout)


def login(
    url: Url = None,
    api_key: Annotated[
        bool, typer.Option("--api-key", help="Sign in with an API key, from a prompt or from stdin.")
    ] = False,
) -> None:
    """Sign in to a server, with a browser or an API key.

    Other commands use the credential for this server when there is no PERDURE_API_KEY. It is kept in
    ~/.config/perdure/credentials.json, which only you can read.
    """
    from perdure.programs.credentials import Credentials

    server = _server(url)
    kept, who = _with_key(server) if api_key else _with_browser(server)
    store = Credentials()
    store.put(server, kept)
    print(f"Signed in to {server} as {who['subject']} ({who['role']}).")
    if kept.expires_s and not kept.refresh_token:
        print("The identity provider gave no refresh token, so this ends when its token expires.", file=sys.stderr)


def logout(url: Url = None) -> None:
    """Forget the sign-in to a server."""
    from perdure.programs.credentials import Credentials

    server = _server(url)
    found = Credentials().delete(server)
    print(f"Signed out of {server}." if found else f"There is no sign-in to {server}.")


def _server(url: str | None) -> str:
    from perdure.app.discovery import server_url
    from perdure.programs.credentials import server_key

    return server_key(url or server_url(Path.cwd()))


def _with_key(server: str) -> tuple[Credential, dict[str, Any]]:
    from perdure.core.errors import InvalidInput
    from perdure.programs.credentials import Credential

    if sys.stdin.isatty():
        from getpass import getpass

        key = getpass(f"API key for {server}: ").strip()
    else:
        key = sys.stdin.read(KEY_CHARS_MAX).strip()
    if not key:
        raise InvalidInput("there is no API key on stdin: perdure login --api-key < FILE")
    found = Credential(key)
    return found, _accepted(server, [found])[1]


def _with_browser(server: str) -> tuple[Credential, dict[str, Any]]:
    from perdure.programs import device_flow
    from perdure.programs.http_client import HttpApi

    with HttpApi(server) as api:
        client = api.get("/session/device")
    code = device_flow.begin(client)
    print(f"Open {code.verification_uri_complete} in a browser and sign in.", file=sys.stderr)
    print(f"The code there must be {code.user_code}", file=sys.stderr)
    print(f"Waiting up to {code.expires_in / 60:.0f} minutes; Ctrl-C stops.", file=sys.stderr, flush=True)
    return _accepted(server, device_flow.credentials_of(client, device_flow.wait(client, code)))


def _accepted(server: str, offered: list[Credential]) -> tuple[Credential, dict[str, Any]]:
    """The first credential that the server takes, and whose it is."""
    from perdure.core.errors import Unauthenticated
    from perdure.programs.http_client import ApiError, HttpApi

    refusal: ApiError | None = None
    for one in offered:
        try:
            with HttpApi(server, key=one.secret) as api:
                return one, api.get("/whoami")
        except ApiError as error:
            if error.status != 401:
                raise
            refusal = refusal or error
    reason = str(refusal).partition("\n")[0] if refusal is not None else "the identity provider gave no token"
    raise Unauthenticated(f"{server} does not accept this credential: {reason}")
