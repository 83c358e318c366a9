"""`service:` and `services:`: calls in the protocol of services.

A plain name is a Python task of that name or a call over HTTP, which is decided when the call is scheduled (flows/decide/executions.py).
The form with fields is always a call over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from perdure.core.expressions.template import Template
from perdure.core.jobs import SERVICE, SERVICE_TASK
from perdure.core.limits import SERVICE_ATTEMPTS_MAX, SERVICE_DELAY_MS_MAX
from perdure.flows.compile.options import ExecutionOptions
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.compile.secrets import TaskArgs
from perdure.flows.compile.verbs import ARGUMENTS_MAX, NodeView, built_in_call, scalars
from perdure.flows.model import HttpServiceOptions, Services, TaskCall, Verb
from perdure.flows.problems import Path

SERVICE_KEYS: Final = (
    "name",
    "url",
    "params",
    "headers",
    "auth",
    "max_attempts",
    "attempt_delay_ms",
    "weighted_by_load",
    "timeout",
)
AUTH_KEYS: Final = ("bearer_env", "headers_env")


def read_service(
    r: Reader, verb: str, node: NodeView, scope: Scope, execution: ExecutionOptions, given: Mapping[str, str]
) -> Verb | None:
    """A call in the protocol of services. `given` has an expression for each of its arguments that `with` does not say."""
    value: Any = node.fields.get(verb)
    form = _arguments(r, node, scope, given)
    if form is None:
        return None
    if verb == "service" and isinstance(value, dict):
        return _http_service(r, cast(dict[str, Any], value), node, scope, execution, form)
    args, service = Template.make(form), over_http(execution, {})
    if verb == "service":
        name = r.name_of(value, node.at("service"), "service")
        if name is None:
            return None
        return TaskCall(
            task=name,
            queue=execution.queue,
            options=execution.options,
            said=execution.said,
            args=args,
            service=service,
        )
    names = read_names(r, value, node.at("services"), "services", scope)
    if names is None:
        return None
    return Services(
        names=names,
        queue=execution.queue,
        options=execution.options,
        said=execution.said,
        args=args,
        service=service,
    )


def over_http(execution: ExecutionOptions, fields: Mapping[str, Any]) -> HttpServiceOptions:
    """The same execution as a call over HTTP."""
    options = msgspec.structs.replace(execution.options, executor=SERVICE)
    return HttpServiceOptions(options=options, said=execution.said, fields=fields)


def _http_service(
    r: Reader,
    fields: dict[str, Any],
    node: NodeView,
    scope: Scope,
    execution: ExecutionOptions,
    form: dict[str, Any],
) -> Verb | None:
    """`service: {name: ..., ...}` or `service: {url: ..., ...}`: always over HTTP."""
    path = node.at("service")
    r.keys(fields, path, f"service of {node.where}", SERVICE_KEYS)
    if (fields.get("name") is None) == (fields.get("url") is None):
        r.error(path, f"service of {node.where} needs a name or a url, and not both", key=True)
        return None
    if fields.get("name") is not None and r.name_of(fields["name"], (*path, "name"), "service") is None:
        return None
    if fields.get("headers") is not None:
        scalars(r, fields["headers"], (*path, "headers"), "headers")
    for key, most in (("max_attempts", SERVICE_ATTEMPTS_MAX), ("attempt_delay_ms", SERVICE_DELAY_MS_MAX)):
        if fields.get(key) is not None:
            r.integer(fields[key], (*path, key), key, 1 if key == "max_attempts" else 0, most)
    if fields.get("weighted_by_load") is not None:
        r.boolean(fields["weighted_by_load"], (*path, "weighted_by_load"), "weighted_by_load")
    if fields.get("auth") is not None:
        _service_auth(r, fields["auth"], (*path, "auth"), node)
    said = {
        "service" if key == "name" else key: v for key, v in fields.items() if key in SERVICE_KEYS and v is not None
    }
    if r.template(said, path, scope) is None:
        return None
    return built_in_call(SERVICE_TASK, TaskArgs(Template.make({**form, **said})), execution)


def _service_auth(r: Reader, value: Any, path: Path, node: NodeView) -> None:
    """Names of the worker's variables. A secret itself has no place in a document, which is recorded."""
    fields = r.mapping(value, path, f"auth of {node.where}")
    if fields is not None:
        r.keys(fields, path, f"auth of {node.where}", AUTH_KEYS)


def read_names(r: Reader, value: Any, path: Path, what: str, scope: Scope) -> Template | None:
    """A list of names, or an expression that makes one."""
    if isinstance(value, str) and "${" in value:
        return r.template(value, path, scope)
    items = r.list_of(value, path, what)
    if items is None:
        return None
    if not items or len(items) > ARGUMENTS_MAX:
        r.error(path, f"{what} has {len(items)} names; it takes 1 to ARGUMENTS_MAX={ARGUMENTS_MAX}")
    for i, item in enumerate(items):
        if not isinstance(item, str) or not item:
            r.wanted((*path, i), f"an entry of {what}", "a name", item)
            return None
    return r.template(value, path, scope)


def _arguments(r: Reader, node: NodeView, scope: Scope, given: Mapping[str, str]) -> dict[str, Any] | None:
    """The arguments of the call as they are written."""
    if not node.has("with"):
        return {k: f"${{ {v} }}" if v else None for k, v in given.items()}
    if r.template(node.fields["with"], node.at("with"), scope) is None:
        return None
    return {"input": node.fields["with"], **{k: f"${{ {v} }}" for k, v in given.items() if k != "input"}}
