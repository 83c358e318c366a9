"""Planted bugs in server."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

MUTANTS = [
    Mutant(
        "guard-swap-two-statements",
        "server/rest/guard.py",
        "                request.state.caller = await admit(request.app.state.server, request, need)\n                check_address(request, known)\n                await check_body(request, self.parse)\n",
        "                check_address(request, known)\n                await check_body(request, self.parse)\n                request.state.caller = await admit(request.app.state.server, request, need)\n",
        "server/test_rest.py::test_a_stranger_gets_in_nowhere",
    ),
    Mutant(
        "guard-off-by-one",
        "server/rest/guard.py",
        "if depth == JSON_DEPTH_MAX:",
        "if depth == JSON_DEPTH_MAX + 1:",
        "unit/test_guards.py server/test_matrix.py",
    ),
    Mutant(
        "guard-validation-dropped",
        "server/rest/guard.py",
        "                for name in one:\n                    check_text(name)\n",
        "                pass\n",
        "unit/test_guard_json.py",
    ),
    Mutant(
        "guard-limit-dropped",
        "server/rest/guard.py",
        "        if size > BODY_BYTES_MAX:\n            raise _too_large()\n",
        "",
        "unit/test_guards.py server/test_matrix.py",
    ),
    Mutant(
        "guard-permission-dropped",
        "server/rest/guard.py",
        "need if isinstance(need, Permission) else None)",
        "None)",
        "server/test_matrix.py::test_a_role_gets_through_exactly_the_doors_it_is_granted",
    ),
    Mutant(
        "authenticator-revoked-stays",
        "server/auth/authenticator.py",
        "not found.expired and not found.revoked and found.principal",
        "not found.expired and found.principal",
        "server/test_auth_keys.py::test_a_revoked_key_is_refused_at_once_by_every_server",
    ),
    Mutant(
        "authenticator-role-change-ignored",
        "server/auth/authenticator.py",
        " and found.principal == principal",
        "",
        "server/test_auth_keys.py::test_a_stream_ends_when_its_key_is_narrowed",
    ),
    Mutant(
        "authenticator-guessing-is-free",
        "server/auth/authenticator.py",
        "            self._failures.take(presented.id, FAILURES_PER_S, FAILURES_BURST)\n",
        "",
        "server/test_auth_keys.py server/test_auth_tokens.py server/test_auth_workers.py",
    ),
    Mutant(
        "authenticator-validation-dropped",
        "server/auth/authenticator.py",
        "        if len(given) > 1:\n",
        "        if len(given) > 99:\n",
        "server/test_auth_keys.py server/test_auth_tokens.py server/test_auth_workers.py",
    ),
    Mutant(
        "authenticator-expired-passes",
        "server/auth/authenticator.py",
        "        if found.expired:\n",
        "        if found.expired and found.revoked:\n",
        "server/test_auth_keys.py::test_a_key_expires_by_the_database_clock",
    ),
    Mutant(
        "hub-right-to-report-dropped",
        "server/grpc/hub.py",
        "if not c.expects(r) or self._placed.get(key) is not c:\n                self.refused",
        "if not c.expects(r):\n                self.refused",
        "server/test_auth_workers.py server/test_old_epochs.py server/test_remote.py",
    ),
    Mutant(
        "hub-namespace-check-dropped",
        "server/grpc/hub.py",
        " == b.attempt and not self._is_foreign(c, b.run_id, b.seq)",
        " == b.attempt",
        "server/test_auth_workers.py",
    ),
    Mutant(
        "hub-stale-decision-taken",
        "server/grpc/hub.py",
        "or (number and number != holder[1]):",
        "or False:",
        "server/test_auth_workers.py server/test_old_epochs.py server/test_remote.py",
    ),
    Mutant(
        "hub-namespace-check-dropped-2",
        "server/grpc/hub.py",
        "        if before is not None and before.ns != ns:\n",
        "        if False:\n",
        "server/test_auth_workers.py server/test_old_epochs.py server/test_remote.py",
    ),
    Mutant(
        "hub-namespace-check-dropped-3",
        "server/grpc/hub.py",
        "[r for r in early if not self._is_foreign(c, r.run_id, r.seq)]",
        "early",
        "server/test_auth_workers.py::test_a_token_of_another_namespace_brought_along_opens_nothing[liar]",
    ),
    Mutant(
        "hub-lose-undelivered",
        "server/grpc/hub.py",
        '                returned.append(Report(run_id, seq, attempt, End.RETURNED, b"", None, now, now))\n        return returned',
        "                pass\n        return returned",
        "server/test_auth_workers.py",
    ),
    Mutant(
        "hub-limit-dropped",
        "server/grpc/hub.py",
        "            if len(r.value) > PAYLOAD_BYTES_MAX:\n",
        "            if False:\n",
        "server/test_auth_workers.py server/test_old_epochs.py server/test_remote.py",
    ),
]
