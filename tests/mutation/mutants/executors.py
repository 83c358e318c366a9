"""Planted bugs of executors and of stored payloads."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

MUTANTS = [
    Mutant(
        "process-group-shared-with-the-worker",
        "executors/process/executor.py",
        "start_new_session=True,",
        "start_new_session=False,",
        "executors/test_process.py::test_cancelling_ends_everything_the_command_started",
    ),
    Mutant(
        "process-result-file-may-be-a-link",
        "executors/process/executor.py",
        "if place.result.is_file() and not place.result.is_symlink():",
        "if place.result.is_file():",
        "executors/test_process.py::test_a_result_file_that_points_elsewhere_is_not_read",
    ),
    Mutant(
        "process-started-again-after-a-restart",
        "executors/process/executor.py",
        "if code is None and not child.is_own and child.place.started() is None:",
        "if not child.is_own:",
        "executors/test_process_states.py",
    ),
    Mutant(
        "process-ended-between-two-looks",
        "executors/process/executor.py",
        "            code = child.place.exit_code()  # it may have begun and ended since the first look\n",
        "",
        "executors/test_process_states.py",
    ),
    Mutant(
        "process-runs-unrecorded",
        "executors/process/state.py",
        " || exit 125",
        "",
        "executors/test_process_states.py",
    ),
    Mutant(
        "process-shim-dies-with-its-command",
        "executors/process/state.py",
        "trap : TERM INT HUP\n",
        "",
        "executors/test_process_conformance.py",
    ),
    Mutant(
        "commands-secrets-need-no-permission",
        "executors/commands.py",
        "if name not in rules.allowed:",
        "if False:",
        "executors/test_process.py",
    ),
    Mutant(
        "commands-variables-of-perdure-on-request",
        "executors/commands.py",
        'if name.startswith("PERDURE_") or name == "DATABASE_URL":',
        "if False:",
        "executors/test_process.py::test_variables_of_perdure_are_not_passed_on_request_either",
    ),
    Mutant(
        "http-addresses-not-checked",
        "executors/http/transport.py",
        "if refusal is not None:",
        "if False:",
        "executors/test_service_ssrf.py",
    ),
    Mutant(
        "service-at-most-once-repeated",
        "executors/service/spec.py",
        "once = job.assignment.options.at_most_once",
        "once = False",
        "executors/test_service_calls.py::test_one_call_is_made_where_a_repetition_is_not_allowed",
    ),
    Mutant(
        "jobs-lost-with-their-worker",
        "core/retry.py",
        "if end is End.LOST and outlives_worker(options.executor) and not _may_repeat(options):",
        "if False:",
        "core/test_retry.py",
    ),
    Mutant(
        "jobs-lost-use-up-attempts",
        "core/retry.py",
        "if end is End.LOST or end is End.JOB_LOST:",
        "if end is End.LOST:",
        "core/test_retry.py::test_a_lost_job_has_a_budget_and_pauses_of_its_own",
    ),
    Mutant(
        "jobs-started-before-their-record",
        "engine/tasks/dispatch.py",
        "or o.to_close_us or o.executor)",
        "or o.to_close_us)",
        "engine/test_dispatch.py::test_what_must_not_run_twice_or_has_to_begin_in_time_has_a_row",
    ),
    Mutant(
        "payloads-digest-not-checked",
        "payloads/transfer.py",
        "if offset == end and digest.digest() != reference.sha256:",
        "if False:",
        "e2e/test_payloads.py::test_a_run_whose_stored_value_is_gone_or_damaged_is_stuck_and_can_be_resumed",
    ),
    Mutant(
        "payloads-of-stored-values-deleted",
        "store/sql/payloads.sql",
        "or exists (select from perdure.payload_part x where",
        "or false and exists (select from perdure.payload_part x where",
        "store/test_payloads.py::test_a_stored_value_keeps_what_it_refers_to",
    ),
    Mutant(
        "payloads-deleted-before-their-time",
        "store/sql/payloads.sql",
        "where check_at < perdure.clock() and store = any",
        "where store = any",
        "store/test_payloads.py::test_an_announcement_puts_deletion_off",
    ),
    Mutant(
        "payloads-of-histories-not-used",
        "engine/runs/run.py",
        "            if MARK in body:\n                batch.use(run.id",
        "            if False:\n                batch.use(run.id",
        "e2e/test_payloads.py",
    ),
    Mutant(
        "payloads-of-deferred-starts-stored",
        "core/payload_fields.py",
        "if isinstance(record, StartRequest) and record.is_deferred:",
        "if False:",
        "core/test_payloads.py::test_the_input_of_a_deferred_start_is_not_stored",
    ),
]
