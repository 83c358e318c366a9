"""Approvals end to end with a server, a worker and keys of people: workflows in code, dags and graphs, answered by REST, by the command line
and by signed links."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from perdure.core.access import NewKey, Role
from perdure.localpg.cluster import PrivateCluster
from perdure.store import api_keys
from tests.cli.live import ROOT, Cli, Terminal
from tests.cli.processes import server, started
from tests.fakes.waiting import until_sync

DATABASE = "cli_approvals"
STYLES = ("code", "dag", "graph")
DOORS = ("rest", "cli", "link")
PEOPLE = ("ada", "ben", "lead", "eve")

DAG = """
flow: NAME
tasks:
  ask:
    approval:
      name: sign
      title: "Sign it?"
      assignees: [ada, ben]
      quorum: 2
      form: {price: {type: integer}}
      details: {rows: 3}
      escalate: {after: ESCALATE, to: [lead]}
      timeout: TIMEOUT
    then: {approved: yes, rejected: no, timeout: hold}
  yes: {value: "approved at ${ ask.value.price }"}
  no: {value: "rejected by ${ ask.by[0] }: ${ ask.comment }"}
  hold: {approval: hold, then: {approved: late}}
  late: {value: late}
"""

GRAPH = """
flow: NAME
graph:
  start: ask
  nodes:
    ask:
      kind: approval
      params:
        approval_key: sign
        title: "Sign it?"
        assignees: [ada, ben]
        quorum: 2
        form: {price: {type: integer}}
        details: {rows: 3}
        escalate: {after: ESCALATE, to: [lead]}
      timeout: TIMEOUT
      post: {output_key: asked}
    yes: {value: "approved at ${ shared.asked.value.price }", set: {said: "${ output }"}}
    no: {value: "rejected by ${ shared.asked.by[0] }: ${ shared.asked.comment }", set: {said: "${ output }"}}
    hold: {kind: approval, params: {approval_key: hold}}
    late: {value: late, set: {said: "${ output }"}}
  edges:
    - {from: ask, action: approved, to: yes}
    - {from: ask, action: rejected, to: no}
    - {from: ask, action: timeout, to: hold}
    - {from: hold, action: approved, to: late}
"""


@dataclass
class Office:
    """A server that wants to know who asks, and people with keys."""

    url: str
    grpc: str
    dsn: str
    state: Path
    keys: dict[str, str]
    made: set[str] = field(default_factory=set)

    def cli(self, who: str, *words: str, **options: Any) -> Any:
        return Cli(self.url, self.state)(*words, PERDURE_API_KEY=self.keys[who], **options)

    def rest(self, who: str | None, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        given = {**headers, **({"Authorization": f"Bearer {self.keys[who]}"} if who else {})}
        with httpx2.Client(base_url=f"{self.url}/api/v1", headers=given, timeout=120) as http:
            return http.request(method, path, json=body)

    def ask(self, style: str, timeout: str = "1h", escalate: str = "30m") -> str:
        """A run that waits for `sign`."""
        if style == "code":
            words = ["run", "asking_code", f"timeout={timeout}", f"escalate={escalate}"]
        else:
            name = f"asking_{style}_{timeout}_{escalate}"
            if name not in self.made:
                text = {"dag": DAG, "graph": GRAPH}[style]
                file = self.state / f"{name}.yaml"
                file.write_text(text.replace("NAME", name).replace("TIMEOUT", timeout).replace("ESCALATE", escalate))
                assert self.cli("admin", "deploy", str(file)).code == 0
                self.made.add(name)
            words = ["run", name]
        done = self.cli("admin", *words)
        assert done.code == 0, done.err
        run = str(done.lines[0][0])
        until_sync(lambda: self.names(run) == ["sign"])
        return run

    def names(self, run: str) -> list[str]:
        return [a["name"] for a in self.rest("admin", "GET", f"/approvals?run={run}").json()["items"]]

    def link(self, run: str, who: str, name: str = "sign", **more: Any) -> str:
        made = self.rest("admin", "POST", f"/approvals/{run}/{name}/links", {"who": who, **more})
        assert made.status_code == 201, made.text
        return str(made.json()["url"])

    def said(self, run: str) -> str:
        """What came of the run."""
        done = self.cli("admin", "watch", run, "-o", "json")
        assert done.code == 0, done.out + done.err
        result = self.rest("admin", "GET", f"/runs/{run}").json()["result"]
        if isinstance(result, dict):
            return str(result.get("said") or next(iter(result.values())))
        return str(result)


@pytest.fixture(scope="module")
def office(
    processes: None, cluster: PrivateCluster, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Office]:
    dsn = cluster.create_database(DATABASE, template=migrated_template)

    async def make() -> dict[str, str]:
        await api_keys.create_namespace(dsn, "elsewhere", by="test")
        found = {}
        for name in PEOPLE:
            new = NewKey(name=name, role=Role.OPERATOR, namespace="default", created_by="test")
            found[name] = (await api_keys.create_key(dsn, new))[1]
        admin = NewKey(name="boss", role=Role.ADMIN, namespace="default", created_by="test")
        found["admin"] = (await api_keys.create_key(dsn, admin))[1]
        other = NewKey(name="ada", role=Role.ADMIN, namespace="elsewhere", created_by="test")
        found["stranger"] = (await api_keys.create_key(dsn, other))[1]
        worker = NewKey(name="worker", role=Role.WORKER, namespace="default", created_by="test")
        found["worker"] = (await api_keys.create_key(dsn, worker))[1]
        return found

    made = asyncio.run(make())
    with (
        server(dsn, ROOT, PERDURE_ENGINE_LEASE_S="5s", PERDURE_ENGINE_HEARTBEAT_S="1s") as one,
        started("worker", "tests.cli.asking", "--server", one.grpc, cwd=ROOT, PERDURE_API_KEY=made["worker"]) as worker,
    ):
        worker.until("connected")
        yield Office(one.http, one.grpc, dsn, tmp_path_factory.mktemp("office"), made)
    cluster.drop_database(DATABASE)


# -- the three doors -----------------------------------------------------------------------------------------------

Answer = tuple[bool, str]
"""Whether it was taken, and the code of the problem if it was not."""


def by_rest(office: Office, run: str, who: str, approved: bool, price: int, comment: str) -> Answer:
    verb = "approve" if approved else "reject"
    body = {"value": {"price": price} if approved else None, "comment": comment}
    answer = office.rest(who, "POST", f"/approvals/{run}/sign/{verb}", body)
    return answer.is_success, answer.json().get("code", "")


def by_cli(office: Office, run: str, who: str, approved: bool, price: int, comment: str) -> Answer:
    value = ["--value", json.dumps({"price": price})] if approved else []
    done = office.cli(who, "approve" if approved else "reject", run, "sign", *value, "--comment", comment)
    code = {"is decided": "approval_closed", "has passed": "approval_expired", "is for": "not_assigned"}
    return done.code == 0, next((c for words, c in code.items() if words in done.err), done.err)


def by_link(office: Office, run: str, who: str, approved: bool, price: int, comment: str) -> Answer:
    """As a browser does it: no credential, a form."""
    made = office.rest("admin", "POST", f"/approvals/{run}/sign/links", {"who": who})
    if not made.is_success:
        return False, made.json()["code"]
    form = {"answer": "approve" if approved else "reject", "f.price": str(price), "comment": comment}
    answer = httpx2.post(made.json()["url"], data=form, timeout=120)
    return answer.is_success, answer.text.partition("<h1>")[2].partition("</h1>")[0]


ANSWERS: dict[str, Callable[..., Answer]] = {"rest": by_rest, "cli": by_cli, "link": by_link}
EVERYWHERE = [pytest.param(s, d, id=f"{s}-{d}") for s in STYLES for d in DOORS]


@pytest.mark.parametrize(("style", "door"), EVERYWHERE)
def test_two_of_two_decide(office: Office, style: str, door: str) -> None:
    answer = ANSWERS[door]
    run = office.ask(style)
    assert answer(office, run, "ada", True, 4, "fine")[0] is True
    view = office.rest("ada", "GET", f"/approvals/{run}/sign").json()
    assert (view["status"], [(v["who"], v["approved"], v["via"]) for v in view["votes"]]) == (
        "open",
        [("ada", True, door)],
    )
    assert answer(office, run, "eve", True, 1, "me too")[0] is False
    assert answer(office, run, "ben", True, 5, "ok")[0] is True
    assert office.said(run) == "approved at 5"


@pytest.mark.parametrize(("style", "door"), EVERYWHERE)
def test_one_no_decides(office: Office, style: str, door: str) -> None:
    answer = ANSWERS[door]
    run = office.ask(style)
    assert answer(office, run, "ada", True, 4, "")[0] is True
    assert answer(office, run, "ben", False, 0, "too cheap")[0] is True
    assert office.said(run) == "rejected by ben: too cheap"


@pytest.mark.parametrize(("style", "door"), EVERYWHERE)
def test_after_the_deadline_no_answer_counts(office: Office, style: str, door: str) -> None:
    answer = ANSWERS[door]
    run = office.ask(style, timeout="1500ms")
    assert answer(office, run, "ada", True, 4, "")[0] is True
    until_sync(lambda: office.names(run) == ["hold"])
    assert answer(office, run, "ben", True, 4, "") == (False, "approval_expired")
    assert office.rest("ada", "GET", f"/approvals/{run}/sign").json()["status"] == "expired"
    assert office.cli("ben", "approve", run).code == 0, "the only one that is open needs no name"
    assert office.said(run) == "late"


@pytest.mark.parametrize(("style", "door"), EVERYWHERE)
def test_who_it_escalates_to_may_answer_from_then_on(office: Office, style: str, door: str) -> None:
    answer = ANSWERS[door]
    for escalate_s in (3, 12, 48):  # on a busy machine it may escalate before it is asked about
        began = time.monotonic()
        run = office.ask(style, escalate=f"{escalate_s}s")
        early, inbox = answer(office, run, "lead", True, 9, ""), _inbox(office, "lead", run)
        if time.monotonic() - began < escalate_s:
            break
    assert (early, inbox) == ((False, "not_assigned"), [])
    until_sync(lambda: _inbox(office, "lead", run) == ["sign"])
    assert answer(office, run, "lead", True, 9, "")[0] is True
    assert answer(office, run, "ada", True, 8, "")[0] is True
    assert office.said(run) == "approved at 8"


def _inbox(office: Office, who: str, run: str) -> list[str]:
    found = office.rest(who, "GET", "/approvals?assignee=@me&limit=500").json()["items"]
    return [a["name"] for a in found if a["run_id"] == run]


@pytest.mark.parametrize(("style", "door"), EVERYWHERE)
def test_what_is_delegated_is_for_the_other_one(office: Office, style: str, door: str) -> None:
    answer = ANSWERS[door]
    run = office.ask(style)
    assert _inbox(office, "eve", run) == []
    refused = office.rest("eve", "POST", f"/approvals/{run}/sign/delegate", {"to": "eve"})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_assigned")
    if door == "cli":
        assert office.cli("ada", "approval", "delegate", run, "sign", "--to", "eve").code == 0
    else:
        assert office.rest("ada", "POST", f"/approvals/{run}/sign/delegate", {"to": "eve"}).status_code == 200
    assert (_inbox(office, "ada", run), _inbox(office, "eve", run)) == ([], ["sign"])
    assert answer(office, run, "ada", True, 1, "") == (False, "not_assigned")
    assert answer(office, run, "eve", True, 2, "")[0] is True
    assert answer(office, run, "ben", True, 3, "")[0] is True
    assert office.said(run) == "approved at 3"


# -- the question --------------------------------------------------------------------------------------------------


def question(office: Office, run: str, title: str) -> str:
    """As the command line lists it, once the run asks it."""

    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(office.cli("ada", "approvals", "--run", run, "-o", "json").out)
        return [a for a in found if a["title"] == title]

    until_sync(lambda: bool(listed()))
    return str(listed()[0]["question"])


@pytest.fixture
def retried(office: Office, tmp_path: Path) -> tuple[str, str, str]:
    """A run that asks something else under the same name after its retry, and both questions."""
    flag = tmp_path / "flag"
    run = str(office.cli("admin", "run", "asking_again", f"flag={flag}").lines[0][0])
    old = question(office, run, "Refund 5?")
    assert office.cli("admin", "signal", run, "go", "1").code == 0
    office.cli("admin", "watch", run)
    flag.touch()
    assert office.cli("admin", "retry", run).code == 0
    return run, old, question(office, run, "Pay 1,000,000?")


def test_votes_for_the_question_before_a_retry_are_refused(office: Office, retried: tuple[str, str, str]) -> None:
    run, old, new = retried
    for verb, more in (("approve", {}), ("reject", {}), ("delegate", {"to": "eve"})):
        answer = office.rest("ada", "POST", f"/approvals/{run}/sign/{verb}", {"question": old, **more})
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), verb
        assert "changed since you read it" in answer.json()["detail"]
        words = ["approval", verb, run, "sign", "--question", old, *[f"--{k}={v}" for k, v in more.items()]]
        done = office.cli("ada", *words)
        assert done.code != 0 and "changed since you read it" in done.err, verb
    view = office.rest("ada", "GET", f"/approvals/{run}/sign").json()
    assert (view["question"], view["votes"], view["assignees"]) == (new, [], ["ada"])
    assert office.cli("ada", "approve", run, "sign", "--question", new).code == 0
    assert office.said(run) == "paid"


def test_a_terminal_answers_the_question_that_it_showed(office: Office, retried: tuple[str, str, str]) -> None:
    run, _, _ = retried
    no = office.cli("ada", "approve", run, "sign", tty=True, typed=Terminal("n\n"), NO_COLOR="1")
    assert no.code == 1 and "Pay 1,000,000?" in no.out and "Approve?" in no.err
    assert office.rest("ada", "GET", f"/approvals/{run}/sign").json()["votes"] == []
    yes = office.cli("ada", "approve", run, tty=True, typed=Terminal("y\n"), NO_COLOR="1")
    assert yes.code == 0, yes.err
    assert office.said(run) == "paid"


class Hesitation(Terminal):
    """A person who confirms after the run has come to ask something else."""

    def __init__(self, dsn: str, run: str) -> None:
        super().__init__("y\n")
        self._dsn, self._run = dsn, run

    def readline(self, size: int | None = -1, /) -> str:
        asyncio.run(self._change())
        return super().readline(-1 if size is None else size)

    async def _change(self) -> None:
        c = await asyncpg.connect(self._dsn)
        try:
            await c.execute("update perdure.promise set question = 'another' where run_id = $1", UUID(self._run))
        finally:
            await c.close()


def test_a_terminal_sends_no_answer_to_a_question_asked_meanwhile(office: Office) -> None:
    run = office.ask("code")
    words = ("approve", run, "--value", '{"price": 3}')
    done = office.cli("ada", *words, tty=True, typed=Hesitation(office.dsn, run), NO_COLOR="1")
    assert done.code != 0 and "changed since you read it" in done.err
    assert office.rest("ada", "GET", f"/approvals/{run}/sign").json()["votes"] == []


# -- links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_a_link_works_once(office: Office, style: str) -> None:
    run = office.ask(style)
    url = office.link(run, "ada")
    for _ in range(2):
        assert httpx2.get(url, timeout=120).status_code == 200, "looking does not use it up"
    form = {"answer": "approve", "f.price": "3"}
    assert httpx2.post(url, data=form, timeout=120).status_code == 200
    for again in (
        httpx2.post(url, data=form, timeout=120),
        httpx2.post(url, json={"approved": False}, timeout=120),
        httpx2.get(url, timeout=120),
    ):
        assert again.status_code == 409
        assert "link_used" in again.text
    view = office.rest("ada", "GET", f"/approvals/{run}/sign").json()
    assert [v["approved"] for v in view["votes"]] == [True], "the second one changed nothing"


def test_a_link_that_was_changed_or_is_over_opens_nothing(office: Office) -> None:
    run = office.ask("code")
    url = office.link(run, "ada")
    base, _, token = url.rpartition("/")
    tampered = [token[:i] + ("A" if token[i] != "A" else "B") + token[i + 1 :] for i in range(0, len(token), 7)]
    for bad in (*tampered, token + "A", token[:-1], token + "=", "x", "%00"):
        for answer in (
            httpx2.get(f"{base}/{bad}", timeout=120),
            httpx2.post(f"{base}/{bad}", json={"approved": True}, timeout=120),
        ):
            assert answer.status_code in (404, 422), bad
            assert run not in answer.text
    short = office.link(run, "ada", expires_in="200ms")
    until_sync(lambda: httpx2.get(short, timeout=120).status_code == 410)
    late = httpx2.post(
        short, json={"approved": True, "value": {"price": 1}}, headers={"Accept": "application/json"}, timeout=120
    )
    assert (late.status_code, late.json()["code"]) == (410, "link_expired")
    assert office.rest("ada", "GET", f"/approvals/{run}/sign").json()["votes"] == []


def test_two_uses_at_once_are_one_use(office: Office) -> None:
    run = office.ask("code")
    url = office.link(run, "ada")

    async def both() -> list[int]:
        async with httpx2.AsyncClient(timeout=120) as http:
            sent = [http.post(url, json={"approved": True, "value": {"price": n}}) for n in range(8)]
            return sorted(answer.status_code for answer in await asyncio.gather(*sent))

    assert asyncio.run(both()) == [200, *([409] * 7)]


def test_a_wrong_answer_leaves_the_link_good(office: Office) -> None:
    run = office.ask("code")
    url = office.link(run, "ada")
    wrong = httpx2.post(url, data={"answer": "approve", "f.price": "much", "comment": "keep me"}, timeout=120)
    assert wrong.status_code == 422 and "is no number" in wrong.text and "keep me" in wrong.text
    assert httpx2.post(url, json={"approved": True}, timeout=120).status_code == 422
    assert httpx2.post(url, data={"answer": "approve", "f.price": "2"}, timeout=120).status_code == 200


def test_nobody_makes_a_link_for_somebody_else_or_answers_in_their_name_but_an_administrator(office: Office) -> None:
    run = office.ask("code")
    refused = office.rest("eve", "POST", f"/approvals/{run}/sign/links", {"who": "ada"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert office.rest("ada", "POST", f"/approvals/{run}/sign/links", {"who": "ada"}).status_code == 201
    body = {"value": {"price": 1}, "as": "ben"}
    assert office.rest("ada", "POST", f"/approvals/{run}/sign/approve", body).status_code == 403
    assert office.cli("admin", "approve", run, "sign", "--value", '{"price": 1}', "--as", "ben").code == 0
    lines = office.rest("admin", "GET", "/audit").json()["items"]
    mine = [line for line in lines if line["target"] == run]
    assert {line["action"] for line in mine} == {"run.start", "link.create", "approval.approve"}
    voted = next(line for line in mine if line["action"] == "approval.approve")
    assert voted["actor"].startswith("key:") and voted["detail"]["who"] == "ben"


def test_an_operator_cannot_resolve_an_approval_past_those_it_asks(office: Office) -> None:
    run = office.ask("dag")
    refused = office.cli("eve", "resolve", run, "sign", "true")
    assert refused.code != 0 and "approve or reject it" in refused.err
    assert (
        office.cli("admin", "resolve", run, "sign", '{"approved": false, "by": ["me"], "comment": "by hand"}').code == 0
    )
    assert office.said(run) == "rejected by me: by hand"


def test_every_act_is_in_the_audit_log(office: Office) -> None:
    run = office.ask("graph")
    assert office.rest("ada", "POST", f"/approvals/{run}/sign/delegate", {"to": "eve"}).status_code == 200
    url = office.link(run, "eve")
    assert httpx2.post(url, data={"answer": "approve", "f.price": "1"}, timeout=120).status_code == 200
    assert office.cli("ben", "reject", run, "sign", "--comment", "no").code == 0
    lines = [a for a in office.rest("admin", "GET", "/audit").json()["items"] if a["target"] == run]
    acts = [(a["action"], a["actor"] if a["actor"].startswith("link") else "", a["detail"].get("who")) for a in lines]
    assert list(reversed(acts)) == [
        ("run.start", "", None),
        ("approval.delegate", "", None),
        ("link.create", "", "eve"),
        ("approval.approve", "link:eve", "eve"),
        ("approval.reject", "", "ben"),
    ]
    issued, used = lines[2]["detail"]["link"], lines[1]["detail"]["link"]
    assert issued == used, "which link it was"


def test_a_link_for_a_plain_promise(office: Office) -> None:
    run = office.cli("admin", "run", "asking_value").lines[0][0]
    url = office.cli("admin", "approval", "link", run, "answer").lines[0][0]
    page = httpx2.get(url, timeout=120)
    assert page.status_code == 200 and "answer" in page.text
    assert httpx2.post(url, data={"value": "forty-two"}, timeout=120).status_code == 200
    assert httpx2.post(url, data={"value": "again"}, timeout=120).status_code == 409
    assert office.said(run) == "forty-two"


# -- namespaces ----------------------------------------------------------------------------------------------------


def test_another_namespace_sees_and_does_nothing(office: Office) -> None:
    run = office.ask("code")
    assert office.rest("stranger", "GET", "/approvals").json()["items"] == []
    assert office.rest("stranger", "GET", f"/approvals?run={run}").status_code == 404
    body = {"value": {"price": 1}, "as": "ada"}
    for method, path, sent in (
        ("GET", f"/approvals/{run}/sign", None),
        ("POST", f"/approvals/{run}/sign/approve", body),
        ("POST", f"/approvals/{run}/sign/reject", {"as": "ada"}),
        ("POST", f"/approvals/{run}/sign/delegate", {"to": "x", "as": "ada"}),
        ("POST", f"/approvals/{run}/sign/links", {"who": "ada"}),
        ("POST", f"/runs/{run}/promises/sign/links", {}),
    ):
        answer = office.rest("stranger", method, path, sent)
        assert answer.status_code == 404, f"{method} {path}: {answer.text}"
    assert office.rest("ada", "GET", f"/approvals/{run}/sign").json()["votes"] == []


# -- the command line ----------------------------------------------------------------------------------------------


def test_the_inbox_on_the_command_line(office: Office) -> None:
    run = office.ask("code")
    mine = office.cli("ada", "approval", "list", "--mine", "me")
    line = next(line for line in mine.lines if line[0] == run)
    assert line[1:6] == ["sign", "asking_code", "Sign it?", "ada,ben", "0/2"]
    assert run not in office.cli("eve", "approvals", "--mine", "me").out
    assert run in office.cli("eve", "approvals").out, "whoever may read sees them all"
    (found,) = json.loads(office.cli("ada", "approvals", "--run", run, "-o", "json").out)
    assert found["details"] == {"rows": 3} and found["form"]["properties"] == {"price": {"type": "integer"}}
    table = office.cli("ada", "approvals", "--run", run, tty=True, NO_COLOR="1").out
    assert "Sign it?" in table and "perdure approve RUN NAME" in table


def test_every_write_prints_what_came_of_it_and_what_is_next(office: Office) -> None:
    run = office.ask("code")
    first = office.cli("ada", "approve", run, "--value", '{"price": 3}', tty=True, NO_COLOR="1")
    assert first.code == 0, first.err
    assert "approved sign" in first.out and f"{office.url}/runs/{run}" in first.out
    assert "1 of 2 approvals" in first.out and f"perdure show {run}" in first.out
    second = office.cli("ben", "approve", run, "--value", '{"price": 3}', "-o", "json")
    assert json.loads(second.out)["status"] == "approved" and "decided: approved" in second.err
    over = office.cli("ben", "reject", run, "sign")
    assert over.code == 1, "the run has ended, or the approval is closed"


def test_wrong_usage_is_explained(office: Office) -> None:
    run = office.ask("code")
    missing = office.cli("ada", "approve", run, "sing", "--value", '{"price": 3}')
    assert missing.code == 4 and "open: sign" in missing.err
    assert office.cli("ada", "approve", run).code == 2, "the form wants a price"
    assert "value.price is missing" in office.cli("ada", "approve", run).err
    assert "is not valid JSON" in office.cli("ada", "approve", run, "--value", "{").err
    assert office.cli("ada", "approval", "delegate", run, "sign").code == 2
    assert "--for" in office.cli("admin", "approval", "link", run).err
    plain = office.cli("admin", "run", "asking_value").lines[0][0]
    none = office.cli("ada", "approve", plain)
    assert none.code == 4 and "has no open approval" in none.err
