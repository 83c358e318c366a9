"""Executors: where tasks run outside of Python workers.

port.py says what an executor is; each has a module of its own and imports no other. These names are for packages that add executors.
"""

from perdure.executors.port import (
    Executor,
    ExecutorHost,
    Job,
    JobFailed,
    JobLost,
    JobRefused,
    JobRunning,
    JobSecrets,
    JobState,
    JobSucceeded,
)

__all__ = [
    "Executor",
    "ExecutorHost",
    "Job",
    "JobFailed",
    "JobLost",
    "JobRefused",
    "JobRunning",
    "JobSecrets",
    "JobState",
    "JobSucceeded",
]
