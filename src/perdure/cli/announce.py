"""What a command prints about a run that it started or changed: the run, its link, and useful next commands."""

from __future__ import annotations

from typing import Any

from perdure.cli.remote_options import Remote


def announce(server: Remote, run: dict[str, Any], verb: str, *commands: str) -> None:
    from rich.text import Text

    def people() -> None:
        line = Text()
        line.append(f"{verb} ", style="green")
        line.append(run.get("workflow", "run"), style="bold")
        line.append(f"  {run['id']}")
        server.out.console.print(line, soft_wrap=True)
        if run.get("url"):
            server.out.console.print(Text(f"  {run['url']}", style="blue"), soft_wrap=True)

    server.out.one(run, people=people, plain=[run["id"], run.get("status"), run.get("url")])
    if not server.out.is_for_people and run.get("url"):
        server.out.say(run["url"])
    server.out.next(*(c if verb == "started" else c.replace("@last", run["id"]) for c in commands))


def announce_reply(server: Remote, run: str, reply: Any, verb: str, *commands: str) -> None:
    """Some requests are answered with the run, some with nothing; in that case the run is read."""
    found = reply if isinstance(reply, dict) and "workflow" in reply else server.api.get(server.path(run))
    announce(server, found, verb, *commands)
