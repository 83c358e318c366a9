"""Prints as JSON what crosses a border of this process: run by the Python of each version, and compared by test_layouts.py.

Of each struct its form and fields, of each enumeration its values, of each message of the worker protocol its fields by number.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import descriptor_pb2
from msgspec import inspect

from perdure.core import commands, events, messages
from perdure.core.api import ACTS
from perdure.core.errors import Failure
from perdure.core.retry import TaskOptions
from perdure.server.rest.app import application
from perdure.wire.pb import api_pb2, worker_pb2


class Layouts:
    """What was met, by name."""

    def __init__(self) -> None:
        self.structs: dict[str, Any] = {}

    def of(self, kind: Any) -> Any:
        """A type as JSON. Structs are named, and described once."""
        match kind:
            case inspect.StructType():
                name = f"{kind.cls.__module__}.{kind.cls.__name__}"
                if name not in self.structs:
                    self.structs[name] = {}
                    self.structs[name] |= {
                        "array": kind.array_like,
                        "tag": kind.tag,
                        "strict": kind.forbid_unknown_fields,
                        "fields": {f.encode_name: [self.of(f.type), f.required] for f in kind.fields},
                    }
                return name
            case inspect.EnumType():
                return {"one of": sorted(str(member.value) for member in kind.cls)}
            case inspect.LiteralType():
                return {"one of": sorted(map(str, kind.values))}
            case inspect.UnionType():
                return {"any of": sorted((self.of(t) for t in kind.types), key=str)}
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
                return {"list of": self.of(kind.item_type)}
            case inspect.TupleType():
                return {"tuple of": [self.of(t) for t in kind.item_types]}
            case inspect.DictType():
                return {"map of": self.of(kind.value_type)}
            case _:
                return type(kind).__name__.removesuffix("Type").lower()


def layouts() -> dict[str, Any]:
    met = Layouts()
    acts = {
        name: [None if t is None else met.of(inspect.type_info(t)) for t in (a.request, a.reply)]
        for name, a in ACTS.items()
    }
    recorded = {
        "events": [met.of(inspect.type_info(t)) for t in events.EVENT_TYPES],
        "commands": [met.of(inspect.type_info(t)) for t in commands.COMMAND_TYPES],
        "messages": met.of(inspect.type_info(messages.Message)),
        "options": met.of(inspect.type_info(TaskOptions)),
        "failure": met.of(inspect.type_info(Failure)),
    }
    protobuf: dict[str, Any] = {}
    for file in (api_pb2, worker_pb2):
        described = descriptor_pb2.FileDescriptorProto()
        file.DESCRIPTOR.CopyToProto(described)
        for message in described.message_type:
            protobuf[message.name] = {str(f.number): [f.name, f.type, f.label, f.type_name] for f in message.field}
    document = application().openapi()
    return {"acts": acts, "recorded": recorded, "structs": met.structs, "protobuf": protobuf, "rest": document}


if __name__ == "__main__":
    print(json.dumps(layouts()))
