"""Every bound has a name, a default and an error that quotes it. Change a bound here and nowhere else."""

from __future__ import annotations

from typing import Final

# -- what one run may hold ------------------------------------------------------------------------------------------
HISTORY_EVENTS_MAX: Final = 50_000
"""Events in one run's history. A run that reaches it fails with `history_too_large`; use `wf.continue_as_new`."""
PAYLOAD_BYTES_MAX: Final = 256 * 1024
"""Bytes of one encoded input, result, signal, state value or operation result, inline in the history."""
FANOUT_TASKS_MAX: Final = 100_000
"""Tasks of one `wf.map`."""
PENDING_TASKS_MAX: Final = 200_000
"""Tasks of one run that are scheduled and not ended."""
SIGNALS_BUFFERED_MAX: Final = 10_000
"""Signals received by a run and not yet consumed by its code."""
NAME_CHARS_MAX: Final = 200
"""Characters in the name of a workflow, task, queue, signal, promise, state key or run key."""
ERROR_CHARS_MAX: Final = 16_000
"""Characters kept of an error message or traceback; the middle is cut."""

# -- how events are chunked -----------------------------------------------------------------------------------------
SCHEDULE_CHUNK_TASKS: Final = 500
"""Tasks in one `TasksScheduled` event; a larger fan-out becomes several events."""
SCHEDULE_CHUNK_BYTES: Final = 512 * 1024
"""Bytes of inputs in one `TasksScheduled` event."""

# -- attempts -------------------------------------------------------------------------------------------------------
ATTEMPTS_DEFAULT: Final = 3
"""Total executions of a task that names no retry policy of its own."""
ATTEMPTS_MAX: Final = 1_000
LOST_WORKERS_MAX: Final = 10
"""Times a task may lose its worker before it fails; counted apart from `max_attempts`."""

# -- what an attempt says while it runs -----------------------------------------------------------------------------
LOG_LINE_CHARS_MAX: Final = 8_000
"""Characters kept of one printed or logged line; the rest is cut."""
LOG_BYTES_PER_ATTEMPT_MAX: Final = 1024 * 1024
"""Bytes of output kept of one attempt. A last line says how many more lines were dropped."""
DETAILS_BYTES_MAX: Final = 16 * 1024
"""Bytes of the JSON given to `attempt().heartbeat(details)`."""
BLOCKED_STACK_CHARS_MAX: Final = 4_000
"""Characters kept of the stack that holds a worker's event loop; the innermost frames are kept."""

# -- declarative flows ----------------------------------------------------------------------------------------------
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one document's text."""
DOCUMENT_DEPTH_MAX: Final = 64
"""Lists and mappings within each other."""
DOCUMENT_NODES_MAX: Final = 100_000
"""Keys and values in one document, aliases expanded."""
ALIASES_MAX: Final = 100
"""Uses of anchors in one document."""
FLOW_NODES_MAX: Final = 1_000
"""Nodes of one document, those of embedded bodies included."""
EMBED_DEPTH_MAX: Final = 8
"""Bodies within bodies."""
NODE_KEY_CHARS_MAX: Final = 100
"""Characters of a node's key."""
GRAPH_STEPS_DEFAULT: Final = 10_000
"""Node visits of a graph that names no `max_steps`; one that goes round for ever fails with `step_limit`."""
GRAPH_STEPS_MAX: Final = 50_000
"""Node visits of one graph."""
EXPR_CHARS_MAX: Final = 4_000
"""Characters of one expression, as written and in canonical form."""
EXPR_DEPTH_MAX: Final = 50
"""Brackets within brackets, and levels of the tree."""
EXPR_STEPS_MAX: Final = 100_000
"""Elements that the functions and operators of one evaluation may touch together. 64 characters of a text count as one."""
EXPR_BYTES_MAX: Final = 1_000_000
"""Characters of a text, or elements of a list, that an expression may build."""
TEMPLATE_BYTES_MAX: Final = 1024 * 1024
"""Roughly the bytes of JSON that a template may evaluate to."""
