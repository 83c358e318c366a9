"""`perdure api-key` and `perdure namespace` on a database that has no key yet."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from perdure.cli.main import app
from perdure.core.access import Permission
from perdure.core.errors import InvalidInput, NotFound, Unauthenticated
from perdure.programs.http_client import Unreachable
from perdure.server.auth import Authenticator
from perdure.store.api_keys import Keys
from perdure.store.connections import Connections


def perdure(*words: str, **variables: str) -> Result:
    cleared = dict.fromkeys(("PERDURE_NAMESPACE", "PERDURE_API_KEY", "PERDURE_DSN", "PERDURE_URL"))
    done = CliRunner().invoke(app, list(words), env={**cleared, **variables})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def enter(dsn: str, key: str, permission: Permission) -> Any:
    async def ask() -> Any:
        pool = Connections(dsn)
        await pool.open()
        try:
            return await Authenticator(Keys(pool)).check({"authorization": f"Bearer {key}"}, permission)
        finally:
            await pool.close()

    return asyncio.run(ask())


def test_the_first_key_opens_the_server_until_it_is_revoked(dsn: str) -> None:
    made = perdure("api-key", "create", "--role", "admin", "--name", "first", "--expires", "30d", "--dsn", dsn)
    key = made.stdout.strip()
    assert re.fullmatch(r"pd_[A-Za-z0-9]{12}_[A-Za-z0-9_-]{43}", key), "stdout is the key and nothing else"
    assert "not shown again" in made.stderr
    assert enter(dsn, key, Permission.ADMIN).namespace is None
    listed = perdure("api-key", "list", "--dsn", dsn, "-o", "json")
    (item,) = json.loads(listed.stdout)
    assert (item["id"], item["role"], item["revoked_at"]) == (key[3:15], "admin", None)
    assert item["expires_at"] is not None
    assert item["created_by"].startswith("cli:")
    assert key[16:] not in listed.stdout
    assert perdure("api-key", "revoke", key[3:15], "--dsn", dsn).exit_code == 0
    with pytest.raises(Unauthenticated, match="revoked"):
        enter(dsn, key, Permission.READ)
    assert "revoked" in perdure("api-key", "list", "--dsn", dsn).stdout


def test_a_key_of_a_namespace_with_scopes(dsn: str) -> None:
    perdure("namespace", "create", "team", "--dsn", dsn)
    words = [
        "--role",
        "developer",
        "--name",
        "ci",
        "--scope",
        "start",
        "--scope",
        "read",
        "--rate",
        "50",
        "-n",
        "team",
        "--dsn",
        dsn,
    ]
    item = json.loads(perdure("api-key", "create", *words, "-o", "json").stdout)
    assert (item["namespace"], item["scopes"], item["rate_per_s"]) == ("team", ["read", "start"], 50)
    principal = enter(dsn, item["secret"], Permission.START)
    assert principal.namespace == "team"
    assert not principal.may(Permission.DEVELOP)
    with pytest.raises(NotFound):
        perdure("api-key", "create", "--role", "viewer", "--name", "x", "-n", "nowhere", "--dsn", dsn)
    with pytest.raises(InvalidInput, match="choose from"):
        perdure("api-key", "create", "--role", "viewer", "--name", "x", "--scope", "fly", "--dsn", dsn)
    assert perdure("api-key", "create", "--role", "king", "--name", "x", "--dsn", dsn).exit_code == 2


def test_namespaces_come_and_go(dsn: str) -> None:
    perdure("namespace", "create", "team", "--dsn", dsn)
    assert [line.split("\t")[0] for line in perdure("namespace", "list", "--dsn", dsn).stdout.splitlines()] == [
        "default",
        "team",
    ]
    perdure("namespace", "delete", "team", "--dsn", dsn)
    assert "team" not in perdure("namespace", "list", "--dsn", dsn).stdout
    with pytest.raises(NotFound):
        perdure("namespace", "delete", "team", "--dsn", dsn)


def test_the_database_of_the_environment_is_used_unless_a_server_is_named(dsn: str) -> None:
    made = perdure("api-key", "create", "--role", "admin", "--name", "first", PERDURE_DSN=dsn)
    assert made.stdout.startswith("pd_")
    assert perdure("namespace", "list", PERDURE_DSN=dsn).exit_code == 0
    for named in ({"PERDURE_URL": "http://127.0.0.1:9"}, {"PERDURE_API_KEY": "pd_x", "PERDURE_URL": "127.0.0.1:9"}):
        with pytest.raises(Unreachable):
            perdure("api-key", "list", PERDURE_DSN=dsn, **named)
