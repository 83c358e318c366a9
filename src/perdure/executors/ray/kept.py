"""Actors that tasks share: a model that is loaded once and used by every task after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

KEPT: Final = "perdure-kept"
"""The Ray namespace of kept actors."""


def kept_actor(name: str, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The actor of this name; if there is none, one is made of the class `make`. For code that runs in a Ray cluster.

    It stays until it is ended with `ray.kill`, or with its node. `options` are those of Ray's actors, such as num_gpus=1.
    """
    import ray

    remote: Any = ray.remote(make)
    return remote.options(name=name, namespace=KEPT, lifetime="detached", get_if_exists=True, **options).remote(*args)
