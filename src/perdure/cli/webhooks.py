"""`perdure webhook`: addresses that turn signed HTTP requests into named events or into signals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Remote, remote

WebhookName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the webhook: letters, digits, dot, dash, underscore.", show_default=False
    ),
]

SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file", metavar="FILE", help="File with the sender's own secret; - for stdin.", show_default=False
    ),
]


@dataclass(frozen=True)
class SentEvent:
    """The event that a request becomes."""

    event: Annotated[
        str,
        typer.Option(
            metavar="EVENT",
            help="Event that a request sends; may hold ${ } over body and headers. [dim][default: that of the scheme][/]",
            show_default=False,
        ),
    ] = ""
    key: Annotated[
        str,
        typer.Option(
            metavar="EXPR",
            help="Requests with the same value of this expression count once. [dim][default: that of the scheme][/]",
            show_default=False,
        ),
    ] = ""


@dataclass(frozen=True)
class SentSignal:
    """The signal that a request becomes, in place of an event."""

    signal: Annotated[
        str,
        typer.Option(
            metavar="SIGNAL", help="In place of --event: signal that a request sends to one run.", show_default=False
        ),
    ] = ""
    run: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="With --signal: key:KEY or a run's id; may hold ${ } over body and headers.",
            show_default=False,
        ),
    ] = ""
    value: Annotated[
        str, typer.Option(metavar="EXPR", help="With --signal: its value. [dim][default: body][/]", show_default=False)
    ] = ""
    start: Annotated[
        str,
        typer.Option(
            metavar="WORKFLOW",
            help="With --signal: start a run of this workflow if key:KEY has no active run.",
            autocompletion=completion_values.workflows,
            show_default=False,
        ),
    ] = ""
    input: Annotated[
        str,
        typer.Option(
            "--input",
            "-i",
            metavar="EXPR",
            help="With --start: input of the run. [dim][default: no arguments][/]",
            show_default=False,
        ),
    ] = ""


@dataclass(frozen=True)
class Signing:
    """How the sender signs."""

    scheme: Annotated[
        Literal["standard", "github", "stripe", "slack", "hmac"], typer.Option(help="How the sender signs.")
    ] = "standard"
    header: Annotated[
        str, typer.Option(metavar="NAME", help="Of hmac: the header that holds the signature.", show_default=False)
    ] = ""
    algorithm: Annotated[Literal["sha256", "sha1", "sha384", "sha512"], typer.Option(help="Of hmac.")] = "sha256"
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Of hmac: what stands before the signature.", show_default=False)
    ] = ""
    encoding: Annotated[Literal["hex", "base64"], typer.Option(help="Of hmac.")] = "hex"


webhook = typer.Typer(help="Turn signed HTTP requests into events or signals.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(webhook, name="webhook")


@webhook.command()
@remote
def create(
    server: Remote,
    name: WebhookName,
    sent: SentEvent,
    signal: SentSignal,
    signing: Signing,
    secret_file: SecretFile = None,
) -> None:
    """Create a webhook and print the secret that signs its requests.

    perdure webhook create shop --signal paid --run 'key:order-${ body.order_id }'
    perdure webhook create shop --event order.paid
    perdure webhook create github --scheme github
    perdure webhook create stripe --scheme stripe --secret-file -
    """
    from perdure.programs.http_client import segment

    body = asdict(sent) | asdict(signal) | asdict(signing) | {"secret": _secret(secret_file)}
    made = server.api.put(f"/webhooks/{segment(name)}", body)
    _print_webhook(server, made)
    if made["secret"] is not None:
        server.out.say("Store the secret; it is not shown again.")
    elif body["secret"]:
        server.out.say(f"requests to webhook {name} are checked with the secret that you gave")
    else:
        server.out.say(f"webhook {name} existed; it now sends {_target(made)} and keeps its secret")
        server.out.next(f"perdure webhook rotate {name}")
    server.out.next("perdure event list" if made["signal"] is None else "perdure webhook list")


def _target(webhook: dict[str, Any]) -> str:
    """The event that it sends, or the signal and its run."""
    if webhook["signal"] is None:
        return str(webhook["event"])
    starts = f", starts {webhook['start']}" if webhook["start"] else ""
    return f"signal {webhook['signal']} to {webhook['run']}{starts}"


@webhook.command()
@remote
def rotate(
    server: Remote,
    name: WebhookName,
    keep_old: Annotated[
        str, typer.Option("--keep-old", metavar="DURATION", help="How long the old secret stays valid, such as 24h.")
    ] = "0s",
    secret_file: SecretFile = None,
) -> None:
    """Replace the secret of a webhook.

    perdure webhook rotate shop --keep-old 24h
    """
    from perdure.programs.http_client import segment

    body = {"keep_old": keep_old, "secret": _secret(secret_file)}
    made = server.api.post(f"/webhooks/{segment(name)}/rotate", body)
    _print_webhook(server, made)
    until = made["old_secret_until"]
    old = f"The old secret stays valid until {until}." if until else "The old secret no longer works."
    server.out.say(f"{old} Store the new one; it is not shown again." if made["secret"] is not None else old)
    server.out.next("perdure webhook list")


def _secret(file: Path | None) -> str:
    """Not from the command line itself: other users of the machine can see that."""
    import sys

    if file is None:
        return ""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"the secret cannot be read: {error}", param_hint="--secret-file") from None
    secret = text.rstrip("\r\n")
    if not secret:
        raise typer.BadParameter("it holds no secret", param_hint="--secret-file")
    return secret


def _print_webhook(server: Remote, made: dict[str, Any]) -> None:
    def people() -> None:
        server.out.console.print(f"{made['name']}  {made['url']}", soft_wrap=True, highlight=False)
        if made["secret"] is not None:
            server.out.console.print(f"secret  {made['secret']}", soft_wrap=True, highlight=False)

    server.out.one(made, people=people, plain=[made["name"], made["url"], made["secret"]])


@webhook.command("list")
@remote
def list_webhooks(server: Remote) -> None:
    """List webhooks. Their secrets are not shown."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("webhook", lambda w: w["name"], style="bold", whole=True),
        Column("sends", _target),
        Column("scheme", lambda w: w["scheme"]),
        Column("url", lambda w: w["url"], style="blue", whole=True),
        Column("old secret until", lambda w: w["old_secret_until"], style="dim"),
        Column("since", lambda w: w["created_at"], lambda w: ago(w["created_at"]), "dim"),
        Column("created by", lambda w: w["created_by"], style="dim"),
    ]
    server.out.rows(
        server.api.items("/webhooks"),
        columns,
        empty="no webhooks yet; create one: perdure webhook create NAME --event EVENT",
    )


@webhook.command()
@remote
def delete(server: Remote, name: WebhookName) -> None:
    """Delete a webhook; its requests are refused from now on."""
    from perdure.programs.http_client import segment

    server.api.delete(f"/webhooks/{segment(name)}")
    server.out.say(f"deleted webhook {name}")
    server.out.next("perdure webhook list")
