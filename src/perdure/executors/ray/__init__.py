"""The executor `ray`: a task as an actor of a Ray cluster.

executor.py   the worker's side; it talks to helper.py, a child process that is connected to the cluster
helper.py     starts, observes and ends actors
attempt.py    runs in the cluster: one actor for each attempt
records.py    what the two sides note in the cluster's key-value store
payloads.py   the payload store, for an attempt in the cluster
questions.py  what an attempt asks the server, through the worker that watches it
kept.py       actors that tasks share
"""

from perdure.executors.ray.executor import RayExecutor
from perdure.executors.ray.kept import kept_actor

__all__ = ["RayExecutor", "kept_actor"]
