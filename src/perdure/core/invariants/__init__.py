"""What must be true of a database and of what its tasks did, no matter what was killed, paused or cut off on the way.

Pure: it is fed rows and ledger lines and counts what does not hold. Nothing here trusts the engine: a run's state is folded anew from
its events, and executions are taken from a ledger that tasks wrote themselves, outside the database.

    history rows --> RunFold --.
    run, task, queue rows -----+--> settle --> Findings (one Tally per invariant)
    ledger lines --------------'
"""

from perdure.core.invariants.attempts import StoredAttempt, check_attempts
from perdure.core.invariants.findings import (
    AT_REST,
    EXAMPLES_MAX,
    INVARIANTS,
    LEDGER,
    NEEDS,
    STARTS,
    Example,
    Findings,
    Tally,
)
from perdure.core.invariants.ledger import check_executions
from perdure.core.invariants.rows import (
    AcknowledgedSignal,
    LedgerLine,
    Phase,
    RunColumns,
    StoredKey,
    StoredPromise,
    StoredRun,
    StoredTask,
    TaskColumns,
    TaskPath,
)
from perdure.core.invariants.run_fold import RunFold, unopened, unreadable
from perdure.core.invariants.run_rows import check_answers, check_deadline, check_keys, check_promises

__all__ = [
    "AT_REST",
    "EXAMPLES_MAX",
    "INVARIANTS",
    "LEDGER",
    "NEEDS",
    "STARTS",
    "AcknowledgedSignal",
    "Example",
    "Findings",
    "LedgerLine",
    "Phase",
    "RunColumns",
    "RunFold",
    "StoredAttempt",
    "StoredKey",
    "StoredPromise",
    "StoredRun",
    "StoredTask",
    "Tally",
    "TaskColumns",
    "TaskPath",
    "check_answers",
    "check_attempts",
    "check_deadline",
    "check_executions",
    "check_keys",
    "check_promises",
    "unopened",
    "unreadable",
]
