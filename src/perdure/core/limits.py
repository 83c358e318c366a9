"""Every bound has a name, a default and an error that quotes it. Change a bound here and nowhere else."""

from __future__ import annotations

from typing import Final

HISTORY_EVENTS_MAX: Final = 50_000
"""Events in one run's history. A run that reaches it fails with `history_too_large`; use `wf.continue_as_new`."""
PAYLOAD_BYTES_MAX: Final = 256 * 1024
"""Bytes of one encoded input, result, signal, state value or operation result, inline in the history."""
PAYLOAD_INLINE_BYTES: Final = 64 * 1024
"""Larger values are kept in the payload store, and the history has a reference; a setting (`PERDURE_PAYLOAD_INLINE_BYTES`)."""
PAYLOAD_POSTGRES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one value or blob in the database's payload store; a setting of the server (`PERDURE_ENGINE_PAYLOAD_BYTES_MAX`)."""
PAYLOAD_OBJECT_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
"""Bytes of one value or blob in an object store."""
PAYLOAD_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of stored content in one row, one message and one read."""
PAYLOAD_TRANSFERS_MAX: Final = 16
"""Stored values that one process reads or writes at the same time."""
PAYLOAD_GRACE_S: Final = 86_400
"""Seconds for which stored content that no run uses is kept: time for an upload to be recorded."""
PAYLOAD_SWEEP_MAX: Final = 500
"""Stored contents that one sweep of an engine looks at."""
PAYLOAD_ANNOUNCED_MAX: Final = 1_000
"""Stored contents that one request may announce, and references that one stored value may name in one request."""
PAYLOAD_SHOWN_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a stored value that REST answers in place of the reference; larger ones are downloaded."""
PAYLOAD_STORES_MAX: Final = 8
"""Object stores that one process may be given (`PERDURE_PAYLOADS`)."""
FLOW_PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of stored values that the expressions of one run of a flow may read; more belongs into a task."""
FLOW_PAYLOADS_MAX: Final = 1_000
"""Stored values that the expressions of one run of a flow may read."""
FANOUT_TASKS_MAX: Final = 100_000
"""Tasks of one `wf.map`."""
PENDING_TASKS_MAX: Final = 200_000
"""Tasks of one run that are scheduled and not ended."""
SIGNALS_BUFFERED_MAX: Final = 10_000
"""Signals of one name that a run has received and its code has not read; more are refused until it has read half of them."""
MESSAGES_PENDING_MAX: Final = 10_000
"""Messages that wait for a run which no engine has in memory, because it is paused or no worker serves it; more are refused, except requests \
to cancel or terminate it."""
MESSAGE_NAMES_MAX: Final = 1_000
"""Names of signals, promises, updates, approvals and named events that a program publishes with its workflows; a program with more is not
checked for unknown names."""
MESSAGE_SCHEMAS_BYTES_MAX: Final = 16 * 1024
"""Bytes of the JSON Schemas of a workflow's messages; names beyond it take any value."""
UPDATES_OPEN_MAX: Final = 1_000
"""Updates that a run was asked for and has not answered; further ones are refused."""
SUCCESSORS_MAX: Final = 1_000
"""Times a run may continue as new between two questions about it; longer chains are not followed."""
UPDATE_WAIT_S_MAX: Final = 30
"""Seconds that one request may wait for the answer to an update; a repeated request with the same id continues to wait."""
UPDATE_ANSWERS_KEPT_S: Final = 7 * 86_400
"""Seconds that the answer to an update is kept for those who ask again."""
QUERIES_MAX: Final = 100
"""Queries of one workflow."""
QUERY_S_MAX: Final = 5.0
"""Seconds in which the function of a query must return, from its arrival at the worker; then it is interrupted."""
QUERY_WORKER_WAIT_S: Final = 5.0
"""Seconds for which a query waits for a worker that serves the version of the run, within the time of the call."""
QUERY_ARGUMENTS_BYTES_MAX: Final = 64 * 1024
"""Bytes of the encoded arguments of a query."""
QUERY_STATES_MAX: Final = 1_000
"""State values of a run that a query can be given."""
QUERY_STATES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of those together; a value in the payload store counts as its reference."""
QUERY_ANSWER_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
"""Bytes of the encoded answer of a query."""
QUERIES_OPEN_MAX: Final = 64
"""Queries that one engine has open; further ones are refused with `unavailable`."""
QUERY_THREADS_MAX: Final = 4
"""Queries that one worker computes at the same time; further ones wait. A function that cannot be interrupted keeps its place."""
WAITING_NAMES_MAX: Final = 100
"""Names of signals and updates that a run's code says it waits for."""
NAME_CHARS_MAX: Final = 200
"""Characters in the name of a workflow, task, queue, signal, promise, state key or run key."""
ATTRIBUTES_MAX: Final = 32
"""Search attributes of one run."""
ATTRIBUTE_NAME_CHARS_MAX: Final = 100
"""Characters in the name of a search attribute."""
ATTRIBUTE_VALUE_CHARS_MAX: Final = 1_000
"""Characters of a search attribute that is a text."""
METRIC_NAMES_MAX: Final = 200
"""Names of tasks, and of workflows, that an engine counts one by one; the rest is counted as `_other`."""
WORKER_WINDOW_S: Final = 300
"""Seconds over which the throughput, failures and durations of a worker are shown."""
WORKERS_MEASURED_MAX: Final = 2_000
"""Workers of one engine that are measured."""
BACKLOG_KINDS_MAX: Final = 500
"""Kinds of task (namespace, queue, name) that an engine shows of what it has in memory; the largest ones."""
TRACEBACK_CHARS_MAX: Final = 8_000
"""Characters of a traceback that the record of an attempt keeps; the middle is cut."""
ERROR_WORD_CHARS_MAX: Final = 200
"""Characters of the code and of the exception's class that the record of an attempt keeps."""
PAYLOAD_KEY_REFRESH_S: Final = 2.0
"""An engine looks for a newer data key at most so often, with its heartbeat."""
QUERY_CHARS_MAX: Final = 4_000
"""Characters of a query text that finds runs."""
QUERY_TERMS_MAX: Final = 100
"""Comparisons in one query; each value of `in (...)` counts."""
QUERY_DEPTH_MAX: Final = 20
"""Parentheses and `not` within each other in one query."""
VIEWS_MAX: Final = 1_000
"""Saved views of one namespace."""
HISTOGRAM_BINS_MAX: Final = 500
"""Bins of one histogram of runs."""
RUN_COUNTS_KEPT_DAYS: Final = 400
"""Days for which it is known how many runs ended and how long they took; retention of the runs themselves does not matter."""
STATS_DAYS_MAX: Final = 366
"""Days of one answer about a workflow's runs."""
ACTIVE_RUNS_COUNTED_MAX: Final = 50_000
"""Active runs that a histogram or a count looks at; with more it says that it is not exact."""
OPEN_COUNTED_MAX: Final = 1_000
"""Open approvals, and dead letters, that are counted."""
DEAD_LETTERS_COUNTED_DAYS: Final = 30
"""Days of creation of the runs whose dead letters are counted."""
DURATIONS_MAX: Final = 1_000
"""Workflows whose usual durations one answer has."""
ERROR_CHARS_MAX: Final = 16_000
"""Characters kept of an error message or traceback; the middle is cut."""

SCHEDULE_CHUNK_TASKS: Final = 500
"""Tasks in one `TasksScheduled` event; a larger fan-out becomes several events."""
SCHEDULE_CHUNK_BYTES: Final = 512 * 1024
"""Bytes of inputs in one `TasksScheduled` event."""

ATTEMPTS_DEFAULT: Final = 3
"""Total executions of a task that names no retry policy of its own."""
ATTEMPTS_MAX: Final = 1_000
LOST_WORKERS_MAX: Final = 10
"""Times a task may lose its worker before it fails; counted apart from `max_attempts`."""
RETRY_AFTER_S_MAX: Final = 86_400
"""Seconds by which an error may delay the next attempt (`RetryLater`, `Retry-After`); a longer delay is cut to this."""
BULK_RETRY_MAX: Final = 100
"""Runs that one request may retry from dead letters."""
BULK_PAYLOAD_BYTES_MAX: Final = 64 * 1024
"""Bytes of the value of a signal that a bulk job sends."""
BULK_RUNS_MAX: Final = 100_000
"""Runs of one bulk job; one that matches more does nothing."""
BULK_JOBS_MAX: Final = 50
"""Unfinished bulk jobs of a namespace."""
BULK_JOBS_KEPT_S: Final = 7 * 86_400
"""How long a finished bulk job can be read."""

WORKFLOW_SLICE_MS: Final = 20
"""Milliseconds that workflow code runs before the rest of its worker has a turn, wherever it awaits. Between two awaits it is not interrupted."""
WORKFLOW_STRETCH_S_MAX: Final = 5
"""Seconds of CPU time that workflow code may take between two awaits. A run that takes longer becomes stuck with `code_overrun`."""
OVERRUN_TRIES: Final = 8
"""Times that code which takes longer is interrupted, four a second, before the worker's process gives up on it and ends."""

SUSPECT_TAKEOVERS: Final = 2
"""Times in a row that an engine died, or lost its lease, while it worked on a run without progress, from which on the run is taken up by itself."""
CODE_CRASHES_MAX: Final = 5
"""Workers in a row that are lost while they run the code of a run. Then it is stuck until an operator resumes it."""
TAKEOVERS_MAX: Final = 5
"""Times in a row after which such a run is not claimed again: it becomes stuck with `quarantined`."""

UNDO_STACK_MAX: Final = 10_000
"""Tasks with an undo in one run that have succeeded, or may still, and were neither undone nor committed."""
UNDO_ATTEMPTS_DEFAULT: Final = 5
"""Total executions of an undo that names no retry policy of its own."""
UNDO_FAILURES_SHOWN: Final = 3
"""Failed undos that the text of a run's end quotes."""
UNWIND_GRACE_US: Final = 3_600_000_000
"""How long a run past its deadline may go on undoing before it is failed as it stands."""
UNDO_WORKER_GRACE_US: Final = 60_000_000
"""How long a run that is to end, has something to undo and has no worker waits for one before the engine ends it without undoing."""

LOG_LINE_CHARS_MAX: Final = 8_000
"""Characters kept of one printed or logged line; the rest is cut."""
LOG_BYTES_PER_ATTEMPT_MAX: Final = 1024 * 1024
"""Bytes of output kept of one attempt. A last line says how many more lines were dropped."""
SCHEMA_BYTES_MAX: Final = 8 * 1024
"""Bytes of the JSON Schema that a worker publishes of what a workflow takes; a longer one is left out, and forms take JSON."""
DETAILS_BYTES_MAX: Final = 16 * 1024
"""Bytes of the JSON given to `attempt().heartbeat(details)`."""
PROGRESS_TEXT_CHARS_MAX: Final = 200
"""Characters kept of the text given to `attempt().progress(done, total, text)`."""
BLOCKED_STACK_CHARS_MAX: Final = 4_000
"""Characters kept of the stack that holds a worker's event loop; the innermost frames are kept."""
HTTP_ALLOW_MAX: Final = 1_000
"""Hosts and networks that one worker's `http_allow` may name."""
PROCESS_SECRETS_MAX: Final = 1_000
"""Variables of one worker that commands may ask for."""
JOB_RESULT_BYTES_MAX: Final = PAYLOAD_POSTGRES_BYTES_MAX
"""Bytes of the result of a job: the result file of a command or container, or output.json of an object-store job."""
JOB_LINE_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
"""Bytes of the last line that an object-store job or a Kubernetes pod printed, where that is its result."""
JOB_VARIABLES_MAX: Final = 200
"""Variables of one worker that a launcher of jobs may be given."""

APPROVAL_BYTES_MAX: Final = 64 * 1024
"""Bytes of what an approval asks as JSON: title, form, assignees and details together."""
APPROVAL_VALUE_BYTES_MAX: Final = 64 * 1024
"""Bytes of the value that comes with an answer to an approval."""
APPROVAL_NAMES_MAX: Final = 50
"""Names among the assignees of an approval, among those it escalates to, and people who answer it."""
DECIDED_APPROVALS_KEPT_DAYS: Final = 30
"""Days for which approvals that were decided or have expired are listed."""
APPROVAL_TITLE_CHARS_MAX: Final = 500
"""Characters of an approval's title."""
COMMENT_CHARS_MAX: Final = 1_000
"""Characters of a comment to an answer."""
LINK_CHARS_MAX: Final = 4_000
"""Characters of a signed link's token."""
LINK_US_DEFAULT: Final = 7 * 86_400 * 1_000_000
"""Default lifetime of a signed link in microseconds: seven days."""
LINK_US_MAX: Final = 366 * 86_400 * 1_000_000
"""Microseconds that a signed link may work for."""

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
EXPR_PATTERN_CHARS_MAX: Final = 500
"""Characters of a regular expression of `matches`."""
EXPR_MATCH_CHARS_MAX: Final = 100_000
"""Characters of a text that `matches` looks at."""
EXPR_STEPS_MAX: Final = 100_000
"""Steps that the expressions of one step of a flow may take together: entering a node, one item of a spread, the end of a node. An element
that a function touches is one step or several, by what it costs; 64 characters of a text are one. It takes about 15 ms."""
EXPR_BYTES_MAX: Final = 1_000_000
"""Characters of a text, or elements of a list, that an expression may build."""
TEMPLATE_BYTES_MAX: Final = 1024 * 1024
"""Roughly the bytes of JSON that a template may evaluate to."""
DECLARED_TASKS_MAX: Final = 20_000
"""Tasks of one namespace whose declared options flows take into account."""
SCHEMA_NODES_MAX: Final = 5_000
"""Parts of one JSON Schema of an input or a form, its references written out."""
VALIDATORS_KEPT_MAX: Final = 256
"""Compiled schemas that one process keeps."""
FLOW_SLICE_MS: Final = 5
"""Milliseconds that flows compute before the rest of the server has a turn. One step of a flow is not interrupted (EXPR_STEPS_MAX)."""
FLOW_SHARE_PERCENT: Final = 50
"""Share of a server's event loop that decisions longer than one slice get together. Runs that compute take turns."""
FLOW_DECISION_STEPS_MAX: Final = 100_000_000
"""Steps of one decision of a flow: what follows from one fact in its history. A run that needs more becomes stuck with `decision_budget`."""
FLOW_DECISION_S_MAX: Final = 120
"""Seconds of CPU time of one decision of a flow; a net below FLOW_DECISION_STEPS_MAX, with the same end."""

LIMITS_PER_TASK_MAX: Final = 5
"""Limits of one task or workflow."""
RATES_PER_TASK_MAX: Final = 5
"""Rates of one task or workflow."""
CONCURRENCY_MAX: Final = 1_000_000
"""What a limit may be at most."""
RATE_COUNT_MAX: Final = 1_000_000_000
"""Units of a rate, and of its burst."""
DEFERRED_START_US_MAX: Final = 7 * 86_400_000_000
"""How long a debounced or batched start may be deferred, and how long a dedup key may last: a week."""
BATCH_ITEMS_MAX: Final = 10_000
"""Items that one run of a batch gets. Its input is bounded by PAYLOAD_BYTES_MAX as well: a batch that would be larger begins at once."""

CALL_TIMEOUT_S: Final = 30.0
"""Seconds in which a call of a client ends, with `unavailable` if there is no answer. Waiting for a result has no limit of its own."""
CALL_TIMEOUT_S_MAX: Final = 600.0
"""Seconds that `call_timeout` of a client may be at most."""
STORE_AWAY_S: Final = 1.0
"""Seconds after which an engine that cannot connect to its database refuses starts instead of keeping them for later."""

MESSAGES_PER_BATCH: Final = 500
"""Messages into runs that one statement writes."""
POST_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of messages after which a statement is full."""
MESSAGES_QUEUED_MAX: Final = 20_000
"""Messages that wait in one engine for their turn to be written; more are refused with `unavailable`."""
MESSAGES_QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of those."""
MESSAGE_KEY_CHARS_MAX: Final = 200
"""Characters of the key that a sender gives to a message or an event."""
MESSAGE_KEYS_KEPT_S: Final = 86_400
"""Seconds after which the key of a message is forgotten; the end of its run is earlier, if it does not continue."""
EVENT_WAITS_PAGE: Final = 500
"""Waits for one event that are examined in one transaction."""
EVENT_MATCH_STEPS_MAX: Final = 20_000
"""Steps that a wait's expression may take to match one event; an expression that needs more does not match."""
EVENTS_PER_LOOK: Final = 20
"""Events that are matched in one transaction."""
EVENT_LOOKS_PER_ROUND: Final = 10
"""Waits that look back for an event in one transaction."""
EVENT_LOOK_PAGE: Final = 500
"""Past events that one wait examines in one transaction."""
EVENT_LOOK_BYTES: Final = 4 * 1024 * 1024
"""Bytes of payloads after which a page of past events ends."""
EVENTS_KEPT_S: Final = 7 * 86_400
"""Seconds for which an event that was delivered to every wait is still shown, and found by waits that look back."""
EVENT_SPEC_BYTES_MAX: Final = 16 * 1024
"""Bytes of a wait for an event: its expression and the values that were bound to it."""
SUBSCRIPTIONS_MAX: Final = 50
"""Events that start runs of one workflow."""
SUBSCRIPTIONS_BYTES_MAX: Final = 64 * 1024
"""Bytes of all that a workflow says about events that start its runs."""
EVENT_STARTS_PER_LOOK: Final = 50
"""Starts by events that an engine claims at a time."""
EVENT_START_TRIES_MAX: Final = 20
"""Times that a start by an event is tried, before it is recorded as failed."""
EVENT_STARTS_SHOWN_MAX: Final = 20
"""Starts that the list of events shows for each of them."""
WEBHOOK_SKEW_S: Final = 300
"""How far the time in a webhook's signature may be from the server's."""
WEBHOOK_BODY_BYTES_MAX: Final = 256 * 1024
"""Bytes of the body of a webhook."""
WEBHOOK_SECRET_CHARS_MIN: Final = 8
"""Characters that the secret of a webhook has at least."""
WEBHOOK_SECRET_CHARS_MAX: Final = 500
"""Characters that it has at most."""
WEBHOOK_OLD_SECRET_S_MAX: Final = 30 * 86_400
"""Seconds for which the old secret of a webhook may stay valid after it was replaced."""
WEBHOOKS_MAX: Final = 1_000
"""Webhooks of one namespace."""

SERVICE_INSTANCES_MAX: Final = 1_000
"""Instances of HTTP services that one namespace has registered."""
INSTANCE_SERVICES_MAX: Final = 100
"""Services of one instance."""
INSTANCE_URL_CHARS_MAX: Final = 2_000
"""Characters of the URL of an instance."""
INSTANCE_KEPT_S: Final = 86_400
"""Seconds without a heartbeat after which an instance is removed."""
CALLBACK_KEPT_S: Final = 7 * 86_400
"""Seconds after which the record of a callback is removed."""
SERVICE_ATTEMPTS_DEFAULT: Final = 3
"""Calls of a service within one attempt of the task, each to another instance as far as there are any."""
SERVICE_ATTEMPTS_MAX: Final = 100
"""The most calls of a service within one attempt of the task."""
SERVICE_DELAY_MS_MAX: Final = 600_000
"""Milliseconds between two calls within one attempt, at most: ten minutes."""
SERVICE_CALLS_MAX: Final = 256
"""Calls of services that one worker has under way; further ones wait for a free place."""
SERVICE_WAIT_S: Final = 30
"""Seconds for which a call waits for an instance where none is online; then the attempt fails."""

SCHEDULE_CRONS_MAX: Final = 20
"""Cron expressions of one schedule."""
CRON_CHARS_MAX: Final = 300
"""Characters of one cron expression."""
CRON_SEARCH_YEARS: Final = 50
"""Years that are searched for the next time of a schedule; one that has none within them is over."""
SCHEDULE_TIMES_MAX: Final = 1_000
"""Moments of one schedule's `at`."""
SCHEDULE_CALENDARS_MAX: Final = 20
"""Names in `calendars`, and in `exclude`, of one schedule."""
SCHEDULE_EVERY_US_MIN: Final = 1_000_000
"""Microseconds of the shortest `every`: a second."""
SCHEDULE_EVERY_US_MAX: Final = 10 * 366 * 86_400_000_000
"""Microseconds of the longest `every`: ten years."""
SCHEDULE_JITTER_US_MAX: Final = 86_400_000_000
"""Microseconds of the largest `jitter`: a day."""
SCHEDULE_YEAR_MAX: Final = 2199
"""The last year in which a schedule can have times."""
MISSED_COUNTED_MAX: Final = 10_000
"""Missed times of a schedule that are counted one by one; an outage that missed more counts as this many."""
CALENDAR_DAYS_MAX: Final = 5_000
"""Entries of one calendar: dates, yearly days and ranges together."""
CALENDAR_DEPTH_MAX: Final = 3
"""Levels of `not` within `not` in a calendar."""
HOLIDAYS_YEAR_FIRST: Final = 2000
"""The first year of a calendar of public holidays."""
HOLIDAYS_YEAR_LAST: Final = 2099
"""The last year of a calendar of public holidays. Some countries are known for fewer years; later days are no holidays."""
SCHEDULES_MAX: Final = 10_000
"""Schedules of one namespace."""
CALENDARS_MAX: Final = 1_000
"""Calendars of one namespace."""
TRIGGERS_MAX: Final = 50
"""Triggers of one flow."""
SCHEDULES_PER_LOOK: Final = 50
"""Schedules that one transaction fires."""
FIRES_PER_LOOK: Final = 20
"""Times of one schedule that one transaction fires; what was missed for long is caught up in several."""
MISSED_ROWS_MAX: Final = 100
"""Missed times of a schedule that one look writes down one by one; more are only counted."""
SCHEDULE_RUNS_LOOKED_AT: Final = 50
"""Latest runs of a schedule among which `overlap` looks for active ones."""
BACKFILL_TIMES_MAX: Final = 1_000
"""Nominal times of one backfill."""
PREVIEW_TIMES_MAX: Final = 500
"""Nominal times that are shown ahead."""

CONNECTIONS_MAX: Final = 10_000
"""HTTP connections of one server, less where the system allows fewer descriptors. With more, the one that has waited longest without a request is closed."""
CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
"""HTTP connections of one client address (of one /64 network of IPv6), at most half of all."""
REQUEST_HEADER_S: Final = 10
"""Seconds from the first byte of a request, or from the connection, to the end of its headers; a TLS handshake has as long."""
REQUEST_BODY_S: Final = 30
"""Seconds for the body of a request."""
CONNECTION_IDLE_S: Final = 75
"""Seconds that a connection may stay open between two requests."""
WRITE_STALL_S: Final = 30
"""Seconds for which a client may take nothing of an answer."""
PEER_SILENT_S: Final = 60
"""Seconds after which a peer that acknowledges nothing that was sent to it is taken for gone."""
STREAMS_MAX: Final = 1_000
"""Event streams of one server, at most half of its connections."""
GRPC_CONNECTIONS_MAX: Final = 10_000
"""gRPC connections of one server, less where the system allows fewer descriptors."""
GRPC_HANDSHAKE_S: Final = 10
"""Seconds for a gRPC connection to say that it is one."""
GRPC_IDLE_S: Final = 300
"""Seconds after which a gRPC connection without a call is closed; the next call opens another."""
GRPC_STREAMS_PER_CONNECTION_MAX: Final = 1_000
"""Calls and streams at once over one gRPC connection."""
DESCRIPTORS_WANTED: Final = 65_536
"""File descriptors that a server asks the system for, as far as the hard limit allows."""
DESCRIPTORS_RESERVED: Final = 128
"""File descriptors that no client connection gets: for PostgreSQL, files and the server itself."""

DEADLINE_LATE_S_MAX: Final = 60
"""Seconds after its deadline by which a run must have been ended; `perdure verify` reports later ones."""
CLOCKS_APART_S_MAX: Final = 60
"""Seconds by which times that workers and engines took may be off the database's before `perdure verify` reports them."""

LOG_REPEATS_SHOWN: Final = 5
"""Warnings of one kind that a process logs in one window before it counts them instead."""
LOG_WINDOW_S: Final = 60
"""Seconds after which warnings that were counted are summed up in one line."""
LOG_KINDS_MAX: Final = 1_000
"""Kinds of warnings that are counted at once; with more, the oldest is summed up early."""
OUTAGE_LOG_S: Final = 60
"""Seconds between two lines about work that keeps failing."""
OUTAGE_OVER_S: Final = 15
"""Seconds without a failure after which such work counts as working again."""
VERSIONS_SHOWN_MAX: Final = 500
"""Versions of a workflow that are listed with it."""
CODE_MODULES_MAX: Final = 2_000
"""Modules of one package whose text is part of a workflow's version; the nearest by imports count."""
CODE_VERSION_CHARS: Final = 12
"""Characters of a version that has no label: the beginning of the hash of its code."""
BUILD_ID_CHARS_MAX: Final = 100
"""Characters of a worker's build id."""
RUNS_PER_VERSION_COUNTED_MAX: Final = 10_000
"""Runs of one version that are counted; more are shown as this many."""
VERSION_TRUST_US: Final = 1_000_000
"""Microseconds for which an engine uses the current version and the ramp of a workflow after it read them."""
REGISTER_EVERY_S: Final = 10
"""Seconds after which an engine registers the versions that its workers serve again: when they were last seen, and which one is current."""
VERSIONS_MOVED_MAX: Final = 1_000
"""Runs that one statement moves to another version."""
IDEMPOTENCY_KEY_CHARS_MAX: Final = 150
"""Characters of a request's idempotency key."""
FORK_STEPS_SHOWN: Final = 10
"""Steps that the refusal of a fork lists."""
FORK_EDITS_MAX: Final = 100
"""Results that one fork replaces."""
DIFF_STEPS_SHOWN: Final = 1_000
"""Steps from where two runs part that `perdure diff` shows."""
RESULTS_SHOWN_MAX: Final = 20
"""Latest results that the state of a run as of an event shows."""
EXPORTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of stored values in one exported history."""
DEBUG_HISTORY_EVENTS_MAX: Final = 20_000
"""Events of a run that are read to compare it, to debug it, or to show an earlier state of it."""
FORK_LINEAGE_MAX: Final = 100
"""Forks of forks in a row."""

PATHS_MAX: Final = 2_000
"""Distinct paths of runs that one `perdure check` replays; with more it says that it could not check all."""
PATH_SAMPLES_MAX: Final = 50
"""Runs of one path that one page of `run.paths` names, and that `perdure check --samples` may replay."""
PATH_PAGE_RUNS_MAX: Final = 1_000
"""Runs whose paths one page of `run.paths` looks at."""
PATH_HISTORY_BYTES_MAX: Final = 256 * 1024
"""Bytes of a history from which its path is made; of a longer one only the beginning counts."""
PATH_PAGE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of histories after which a page of `run.paths` ends."""
PATH_TEXT_CHARS_MAX: Final = 1_000
"""Characters of a path in words; a longer one is clipped in the middle."""
LOOP_STEPS_MAX: Final = 24
"""Steps of a loop body up to which its repetitions count as one path."""

WEB_SESSION_S: Final = 12 * 3_600
"""Seconds after which a browser has to sign in again, used or not; a setting (`PERDURE_SESSION_LIFETIME`)."""
WEB_SESSION_IDLE_S: Final = 3_600
"""Seconds without a request after which a browser has to sign in again; a setting (`PERDURE_SESSION_IDLE`)."""
WEB_SESSIONS_MAX: Final = 20
"""Browsers that are signed in with one API key, or as one user, at a time; the oldest session ends."""
NAMESPACES_SHOWN_MAX: Final = 1_000
"""Namespaces that a session lists to choose from."""
