"""The executor `process`: a command as a child process of the worker's machine.

executor.py   starts children, observes them, finds them again after a restart
state.py      the directory of a job, from which the next worker learns what became of it
output.py     what a child writes
"""

from perdure.executors.process.executor import ProcessExecutor

__all__ = ["ProcessExecutor"]
