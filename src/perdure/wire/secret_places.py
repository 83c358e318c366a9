"""Where secrets stand in the input of a task, as it travels."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.secrets import SecretPlace
from perdure.wire.pb import worker_pb2 as pb

_path: Final = msgspec.json.Decoder(tuple[str | int, ...]).decode


def put(task: pb.Task, places: tuple[SecretPlace, ...]) -> None:
    for place in places:
        task.secrets.add(path=msgspec.json.encode(place.path).decode(), names=place.names)


def read(task: pb.Task) -> tuple[SecretPlace, ...]:
    return tuple(SecretPlace(_path(place.path), tuple(place.names)) for place in task.secrets)
