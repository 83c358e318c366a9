"""What a node does: one verb key each, the same in both bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from perdure.core.expressions.template import Template
from perdure.core.jobs import CONTAINER, PULL_POLICIES, executor_of, job_task
from perdure.core.limits import APPROVAL_NAMES_MAX
from perdure.flows.compile.flow_control import CONTROL_KEYS
from perdure.flows.compile.input import read_input
from perdure.flows.compile.options import ExecutionOptions
from perdure.flows.compile.reading import Reader, Scope, found
from perdure.flows.compile.secrets import (
    COMMAND_HINT,
    COMMAND_SECRET_KEYS,
    HTTP_SECRET_KEYS,
    JOB_HINT,
    JOB_SECRET_KEYS,
    TaskArgs,
    read_args,
)
from perdure.flows.compile.waits import message_name, read_wait
from perdure.flows.model import (
    ApprovalVerb,
    ChildCall,
    Embedded,
    FlowBody,
    Sleep,
    TaskCall,
    ValueVerb,
    Verb,
)
from perdure.flows.problems import Path

HTTP_TASK: Final = "perdure.http"
RUN_TASK: Final = "perdure.run"
CONTAINER_TASK: Final = job_task(CONTAINER)
ARGUMENTS_MAX: Final = 1_000
"""Arguments of one command, or services of one node."""

TASK_VERBS: Final = ("python", "http", "run", "job", "service", "services")
BODY_VERBS: Final = ("tasks", "graph", "subflow")
VERBS: Final = (*TASK_VERBS, "flow", *BODY_VERBS, "choice", "sleep", "wait", "approval", "value")
HTTP_KEYS: Final = ("url", "method", "headers", "query", "body", "service")
HTTP_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
RUN_KEYS: Final = ("command", "env", "cwd", "stdin", "input", "secrets", "exit_codes", "limits")
IMAGE_KEYS: Final = ("user", "network", "mounts", "read_only", "pull")
"""Keys of `run` that go with its `image`."""
JOB_KEYS: Final = ("executor",)
"""Of every job; the other keys belong to its executor."""
APPROVAL_KEYS: Final = (
    "name",
    "title",
    "description",
    "details",
    "assignees",
    "quorum",
    "reject_quorum",
    "form",
    "escalate",
    "timeout",
)
ESCALATE_KEYS: Final = ("after", "to")

TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "with": ("", "python", "service", "services", "flow", *BODY_VERBS),
    "foreach": ("", *(v for v in VERBS if v not in {"services", "choice"})),
    "parallel": ("", *(v for v in VERBS if v not in {"services", "choice"})),
    "concurrency": ("", *(v for v in VERBS if v != "choice")),
    "on_error": ("", *(v for v in VERBS if v != "choice")),
    "retry": ("", *TASK_VERBS),
    "max_retries": ("", *TASK_VERBS),
    "heartbeat": ("", *TASK_VERBS),
    "start_within": ("", *TASK_VERBS),
    "finish_within": ("", *TASK_VERBS),
    "queue": ("", *TASK_VERBS),
    "at_most_once": ("", *TASK_VERBS),
    **dict.fromkeys(CONTROL_KEYS, ("", *TASK_VERBS)),
    "compensate": ("", *TASK_VERBS, "flow", *BODY_VERBS),
    "timeout": ("", *TASK_VERBS, "flow", *BODY_VERBS, "wait", "approval"),
    "output": ("tasks", "graph"),
    "state": ("tasks", "graph"),
    "max_steps": ("graph",),
}
"""Modifiers, and the verbs they go with; "" is a node without a verb."""

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
_SHELL_HINT: Final = "pass values as arguments or env, and write $NAME in the text; a shell would run what is in them"
_DOTTED_NAME = re.compile(r"[A-Za-z_][\w.]*\Z")


class Bodies(msgspec.Struct, frozen=True):
    """What verbs need to know of the document around them."""

    execution: ExecutionOptions
    embed: Callable[[Mapping[str, Any], Path, str], FlowBody | None]
    """Compiles a body within the body; takes the mapping that holds it, its path and what it is called in messages."""


class NodeView(msgspec.Struct, frozen=True):
    """A node as written, and where."""

    key: str
    fields: Mapping[str, Any]
    path: Path
    where: str
    """`task 'process'`, for messages."""

    def at(self, *steps: str | int) -> Path:
        return (*self.path, *steps)

    def has(self, key: str) -> bool:
        return self.fields.get(key) is not None


def verb_of(r: Reader, node: NodeView) -> str | None:
    """The node's verb, "" when it has none, None when it has several."""
    given = [k for k in node.fields if k in VERBS]
    if len(given) > 1:
        r.error(node.at(given[1]), f"{node.where} has {' and '.join(given)}; a node does one thing", key=True)
        return None
    return given[0] if given else ""


def check_modifiers(r: Reader, node: NodeView, verb: str) -> None:
    for key, verbs in TAKES.items():
        if node.has(key) and verb not in verbs:
            what = f"{verb}:" if verb else "a plain task"
            hint = _elsewhere(key, verb)
            r.error(node.at(key), f"{key} does not go with {what} in {node.where}", hint, key=True)


def _elsewhere(key: str, verb: str) -> str:
    if key == "with" and verb == "http":
        return "put the values in its body, query or headers"
    if key == "with" and verb == "run":
        return "put the values in its arguments or env"
    if key == "with" and verb == "job":
        return "put the values in its input"
    return ""


def read_verb(
    r: Reader, verb: str, node: NodeView, scope: Scope, bodies: Bodies, execution: ExecutionOptions
) -> Verb | None:
    """Any verb but choice. The scope is the one of an execution: in a spread it has the item."""
    value = node.fields.get(verb) if verb else None
    match verb:
        case "":
            return task_call(node.key, _task_args(r, node, scope), execution)
        case "python":
            return _python(r, value, node, scope, execution)
        case "http":
            return built_in_call(HTTP_TASK, _http(r, value, node, scope), execution)
        case "run":
            in_container = isinstance(value, dict) and cast(dict[str, Any], value).get("image") is not None
            return built_in_call(CONTAINER_TASK if in_container else RUN_TASK, _run(r, value, node, scope), execution)
        case "job":
            return _job(r, value, node, scope, execution)
        case "flow":
            name = r.name_of(value, node.at("flow"), "flow")
            return None if name is None else ChildCall(workflow=name, args=read_with(r, node, scope))
        case "tasks" | "graph":
            body = bodies.embed(node.fields, node.path, node.where)
            return None if body is None else Embedded(body=body, args=read_with(r, node, scope))
        case "subflow":
            fields = r.mapping(value, node.at("subflow"), "subflow")
            body = None if fields is None else bodies.embed(fields, node.at("subflow"), f"the subflow of {node.where}")
            return None if body is None else Embedded(body=body, args=read_with(r, node, scope))
        case "sleep":
            return _sleep(r, value, node, scope)
        case "wait":
            return read_wait(r, value, node.at("wait"), node.where, scope)
        case "approval":
            return _approval(r, value, node, scope)
        case "value":
            made = r.template(value, node.at("value"), scope)
            return None if made is None else ValueVerb(value=made)
        case _:
            raise AssertionError(verb)


def _task_args(r: Reader, node: NodeView, scope: Scope) -> TaskArgs | None:
    """Arguments of a task, which may be secrets."""
    value = node.fields.get("with")
    if not isinstance(value, dict):
        plain = read_with(r, node, scope)
        return None if plain is None else TaskArgs(plain)
    return read_args(r, value, node.at("with"), scope)


def task_call(task: str, args: TaskArgs | None, execution: ExecutionOptions) -> TaskCall:
    options = execution.options
    if args is not None and args.secrets:
        options = msgspec.structs.replace(options, secrets=args.secrets)
    given = None if args is None else args.template
    return TaskCall(task=task, queue=execution.queue, options=options, said=execution.said, args=given)


def read_with(r: Reader, node: NodeView, scope: Scope) -> Template | None:
    """Arguments by name: an object, or one expression that makes an object."""
    value = node.fields.get("with")
    if value is None:
        return None
    if not isinstance(value, dict) and not (isinstance(value, str) and "${" in value):
        r.wanted(node.at("with"), f"with of {node.where}", "a mapping of arguments", value)
        return None
    return r.template(value, node.at("with"), scope)


def built_in_call(task: str, args: TaskArgs | None, execution: ExecutionOptions) -> TaskCall | None:
    """A call of a built-in task; the options say which executor runs it, if one does."""
    if args is None:
        return None
    options = msgspec.structs.replace(execution.options, executor=executor_of(task))
    return task_call(task, args, msgspec.structs.replace(execution, options=options))


def _python(r: Reader, value: Any, node: NodeView, scope: Scope, execution: ExecutionOptions) -> TaskCall | None:
    path = node.at("python")
    name = r.name_of(value, path, "python")
    if name is None:
        return None
    module, colon, function = name.rpartition(":")
    if colon and not (_DOTTED_NAME.match(module) and _DOTTED_NAME.match(function)):
        r.error(path, f"python is {found(value)}; it must be module:function, or the name of a task")
        return None
    return task_call(function, _task_args(r, node, scope), execution)


def _http(r: Reader, value: Any, node: NodeView, scope: Scope) -> TaskArgs | None:
    path = node.at("http")
    fields = r.mapping(value, path, "http")
    if fields is None:
        return None
    r.keys(fields, path, f"http of {node.where}", HTTP_KEYS)
    if fields.get("url") is None and fields.get("service") is None:
        r.error(path, f"http of {node.where} has neither url nor service", "say whom to call", key=True)
    for key in ("url", "service"):
        if fields.get(key) is not None:
            r.text(fields[key], (*path, key), key)
    for key in ("headers", "query"):
        if fields.get(key) is not None:
            scalars(r, fields[key], (*path, key), key)
    if fields.get("method") is not None:
        r.word(fields["method"], (*path, "method"), "method", HTTP_METHODS)
    return read_args(r, {k: v for k, v in fields.items() if k in HTTP_KEYS}, path, scope, HTTP_SECRET_KEYS)


def scalars(r: Reader, value: Any, path: Path, what: str) -> None:
    """A mapping of names to text or numbers; one expression will do for the whole."""
    if isinstance(value, str) and "${" in value:
        return
    for key, item in (r.mapping(value, path, what) or {}).items():
        if isinstance(item, (dict, list)):
            r.wanted((*path, key), f"{key} in {what}", "text or a number", item)


def _run(r: Reader, value: Any, node: NodeView, scope: Scope) -> TaskArgs | None:
    path = node.at("run")
    if isinstance(value, (str, list)):
        whole, at = {"command": cast(Any, value)}, path
    else:
        fields = r.mapping(value, path, f"run of {node.where}")
        if fields is None:
            return None
        known = (*RUN_KEYS, "image", *IMAGE_KEYS)
        r.keys(fields, path, f"run of {node.where}", known)
        whole, at = {k: v for k, v in fields.items() if k in known and v is not None}, (*path, "command")
    for key in IMAGE_KEYS:
        if key in whole and "image" not in whole:
            r.error((*path, key), f"{key} of {node.where} goes with image", "a plain command has none", key=True)
    # An image may have a command of its own.
    if ("command" in whole or "image" not in whole) and not _command(r, whole.get("command"), at, node):
        return None
    for key in ("cwd", "image"):
        if key in whole:
            r.text(whole[key], (*path, key), key)
    for key in ("env", "exit_codes", "limits"):
        if key in whole:
            scalars(r, whole[key], (*path, key), key)
    if "pull" in whole:
        r.word(whole["pull"], (*path, "pull"), "pull", PULL_POLICIES)
    if "secrets" in whole:
        r.names(whole["secrets"], (*path, "secrets"), "secrets")
    if at == path:
        made = read_args(r, value, path, scope, (), COMMAND_HINT)
        return None if made is None else TaskArgs(Template.make(whole))
    return read_args(r, whole, path, scope, COMMAND_SECRET_KEYS, COMMAND_HINT)


def _job(r: Reader, value: Any, node: NodeView, scope: Scope, execution: ExecutionOptions) -> TaskCall | None:
    """Work for an executor outside of the worker. Its keys are checked by that executor, when the job is started."""
    path = node.at("job")
    fields = r.mapping(value, path, f"job of {node.where}")
    if fields is None:
        return None
    name = r.name_of(fields.get("executor"), (*path, "executor"), "executor")
    if fields.get("command") is not None and not _command(r, fields["command"], (*path, "command"), node):
        return None
    keys = JOB_SECRET_KEYS.get(name or "")
    hint = COMMAND_HINT if keys else JOB_HINT
    spec = read_args(r, {k: v for k, v in fields.items() if k not in JOB_KEYS}, path, scope, keys, hint)
    return None if name is None else built_in_call(job_task(name), spec, execution)


def _command(r: Reader, command: Any, path: Path, node: NodeView) -> bool:
    if isinstance(command, str):
        if "${" in command:
            message = f"the shell text of {node.where} holds ${{ }}"
            r.error(path, message, _SHELL_HINT, offset=command.index("${"))
            return False
        if not command.strip():
            r.error(path, f"{node.where} runs nothing: its command is empty")
            return False
        return True
    if not isinstance(command, list) or not command:
        r.wanted(path, f"the command of {node.where}", "a list of arguments, or text for the shell", command)
        return False
    items = command
    if len(items) > ARGUMENTS_MAX:
        r.error(path, f"the command has more than ARGUMENTS_MAX={ARGUMENTS_MAX} arguments")
        return False
    for i, item in enumerate(items):
        if isinstance(item, (dict, list)) or item is None:
            r.wanted((*path, i), f"an argument of {node.where}", "text or a number", item)
            return False
    return _no_shell_text(r, items, path, node)


def _no_shell_text(r: Reader, items: list[Any], path: Path, node: NodeView) -> bool:
    """`sh -c TEXT` is shell text as well."""
    if not isinstance(items[0], str) or items[0].rpartition("/")[2] not in _SHELLS:
        return True
    for i in range(1, len(items) - 1):
        flag, text = items[i], items[i + 1]
        if isinstance(flag, str) and re.fullmatch(r"-[a-z]*c[a-z]*", flag) and isinstance(text, str) and "${" in text:
            message = f"the shell text of {node.where} holds ${{ }}"
            r.error((*path, i + 1), message, _SHELL_HINT, offset=text.index("${"))
            return False
    return True


def _sleep(r: Reader, value: Any, node: NodeView, scope: Scope) -> Sleep | None:
    path = node.at("sleep")
    if isinstance(value, str) and "${" in value:
        made = r.template(value, path, scope)
        return None if made is None else Sleep(delay=made)
    return None if r.duration(value, path, "sleep") is None else Sleep(delay=Template.literal(value))


def _approval(r: Reader, value: Any, node: NodeView, scope: Scope) -> ApprovalVerb | None:
    path = node.at("approval")
    if value is None or isinstance(value, str):
        made = message_name(r, node.key if value is None else value, path, "the approval's name", scope)
        return None if made is None else ApprovalVerb(name=made)
    fields = r.mapping(value, path, "approval")
    return None if fields is None else read_approval(r, fields, path, node, scope)


def read_approval(
    r: Reader, fields: Mapping[str, Any], path: Path, node: NodeView, scope: Scope
) -> ApprovalVerb | None:
    r.keys(fields, path, f"approval of {node.where}", APPROVAL_KEYS)
    for key in ("title", "description"):
        if fields.get(key) is not None:
            r.text(fields[key], (*path, key), key)
    form = read_input(r, fields["form"], (*path, "form"), "form") if fields.get("form") is not None else None
    name = fields.get("name")
    made = message_name(r, node.key if name is None else name, (*path, "name"), "the approval's name", scope)
    shown = {k: fields[k] for k in ("title", "description", "details") if fields.get(k) is not None}
    asked = _people(r, fields.get("assignees"), (*path, "assignees"), "assignees")
    after_us, later = _escalate(r, fields.get("escalate"), (*path, "escalate"), node)
    quorum, reject_quorum = (_quorum(r, fields, key, path) for key in ("quorum", "reject_quorum"))
    shown |= {k: v for k, v in (("assignees", asked), ("escalate_to", later)) if v is not None}
    _check_reachable(r, shown, quorum, path, node)
    what = r.template(shown, path, scope) if _readable(r, shown, path, scope) else None
    if made is None or what is None:
        return None
    return ApprovalVerb(
        name=made,
        shown=what if shown else None,
        form=form,
        quorum=quorum,
        reject_quorum=reject_quorum,
        escalate_us=after_us,
    )


def _readable(r: Reader, shown: dict[str, Any], path: Path, scope: Scope) -> bool:
    """Each by itself first, so that what is wrong is found where it stands."""
    before = len(r.problems)
    for key, value in shown.items():
        r.template(value, (*path, "escalate", "to") if key == "escalate_to" else (*path, key), scope)
    return len(r.problems) == before


def _people(r: Reader, value: Any, path: Path, what: str) -> Any:
    """Names, or an expression that makes a list of them."""
    if value is None or (isinstance(value, str) and "${" in value):
        return value
    return [name for name, _ in r.names(value, path, what)]


def _escalate(r: Reader, value: Any, path: Path, node: NodeView) -> tuple[int, Any]:
    if value is None:
        return 0, None
    fields = r.mapping(value, path, f"escalate of {node.where}")
    if fields is None:
        return 0, None
    r.keys(fields, path, f"escalate of {node.where}", ESCALATE_KEYS)
    for key, hint in (("after", "say after how long"), ("to", "say to whom")):
        if fields.get(key) is None:
            r.error(path, f"escalate of {node.where} has no {key}", hint, key=True)
    after_us = r.duration(fields["after"], (*path, "after"), "after") if fields.get("after") is not None else None
    return after_us or 0, _people(r, fields.get("to"), (*path, "to"), "to")


def _quorum(r: Reader, fields: Mapping[str, Any], key: str, path: Path) -> int:
    if fields.get(key) is None:
        return 1
    return r.integer(fields[key], (*path, key), key, 1, APPROVAL_NAMES_MAX) or 1


def _check_reachable(r: Reader, shown: Mapping[str, Any], quorum: int, path: Path, node: NodeView) -> None:
    """As far as the names are written out."""
    asked, later = shown.get("assignees"), shown.get("escalate_to", [])
    if not isinstance(asked, list) or not isinstance(later, list):
        return
    names: list[Any] = [*asked, *later]
    people = {str(n) for n in names}
    if asked and quorum > len(people):
        r.error(
            (*path, "quorum"), f"the quorum of {node.where} is {quorum}, and only {len(people)} may answer", key=True
        )


def read_timeout(r: Reader, verb: str, node: NodeView) -> int:
    """Of a verb that is no task: on the node, or within wait and approval."""
    outer = node.fields.get("timeout")
    inner = node.fields.get(verb)
    within = (
        cast(dict[str, Any], inner).get("timeout") if verb in {"wait", "approval"} and isinstance(inner, dict) else None
    )
    if outer is not None and within is not None:
        r.error(node.at("timeout"), f"{node.where} has two timeouts", f"keep the one in {verb}", key=True)
    if within is not None:
        return r.duration(within, node.at(verb, "timeout"), "timeout") or 0
    return 0 if outer is None else r.duration(outer, node.at("timeout"), "timeout") or 0
