"""Every alert fires when it should and only then, and leads to a runbook whose commands exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.cli.commands import COMMANDS, canonical, load
from tests.docs.pages import ROOT, anchors_of
from tests.fakes.failures import Failures

RULES = ROOT / "deploy/prometheus/alerts.yml"
RUNBOOKS = ROOT / "docs/how-to/runbooks.md"
ALERTS: list[dict[str, Any]] = [r for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"]]
ME = 'instance="s1:9600",job="perdure"'

Series = tuple[str, str]
CASES: dict[str, tuple[list[Series], list[Series]]] = {
    "PerdureServerDown": ([("up", "0x60")], [("up", "1x60")]),
    "PerdureDatabaseAway": ([("perdure_database_up", "0x60")], [("perdure_database_up", "1x60")]),
    "PerdureNoSession": ([("perdure_session_held", "0x60")], [("perdure_session_held", "1x60")]),
    "PerdureFencedRepeatedly": (
        [("perdure_sessions_fenced_total", "0x50 0+1x10")],
        [("perdure_sessions_fenced_total", "0x50 1x10")],
    ),
    "PerdureQueueOld": (
        [('perdure_queue_oldest_age_seconds{namespace="default",queue="io"', "400x60")],
        [('perdure_queue_oldest_age_seconds{namespace="default",queue="io"', "200x60")],
    ),
    "PerdureTasksFailing": (
        [("perdure_tasks_failed_total", "0+2x60"), ("perdure_tasks_ended_total", "0+10x60")],
        [("perdure_tasks_failed_total", "0+1x60"), ("perdure_tasks_ended_total", "0+100x60")],
    ),
    "PerdureRunsStuck": ([("perdure_runs_stuck_total", "0x55 1x5")], [("perdure_runs_stuck_total", "3x60")]),
    "PerdureRecordsRefused": (
        [("perdure_records_refused_total", "0x55 1x5")],
        [("perdure_records_refused_total", "3x60")],
    ),
    "PerdureCommitsSlow": (
        [
            ('perdure_commit_duration_seconds_bucket{le="0.5"', "0+90x60"),
            ('perdure_commit_duration_seconds_bucket{le="2"', "0+100x60"),
            ('perdure_commit_duration_seconds_bucket{le="+Inf"', "0+100x60"),
        ],
        [
            ('perdure_commit_duration_seconds_bucket{le="0.5"', "0+100x60"),
            ('perdure_commit_duration_seconds_bucket{le="+Inf"', "0+100x60"),
        ],
    ),
    "PerdureScheduleToStartSlow": (
        [
            ('perdure_task_schedule_to_start_seconds_bucket{le="10"', "0+50x60"),
            ('perdure_task_schedule_to_start_seconds_bucket{le="60"', "0+100x60"),
            ('perdure_task_schedule_to_start_seconds_bucket{le="+Inf"', "0+100x60"),
        ],
        [
            ('perdure_task_schedule_to_start_seconds_bucket{le="10"', "0+100x60"),
            ('perdure_task_schedule_to_start_seconds_bucket{le="+Inf"', "0+100x60"),
        ],
    ),
    "PerdureOutputDropped": (
        [("perdure_log_chunks_dropped_total", "0x55 9x5")],
        [("perdure_log_chunks_dropped_total", "9x60")],
    ),
    "PerdureServerMissing": ([("perdure_engines", "3x30 2x30")], [("perdure_engines", "2x60")]),
    "PerdureServerFull": (
        [("perdure_runs_in_memory", "4000x60"), ("perdure_runs_in_memory_limit", "4096x60")],
        [("perdure_runs_in_memory", "2000x60"), ("perdure_runs_in_memory_limit", "4096x60")],
    ),
    "PerdureEventLoopStalled": (
        [
            ('perdure_loop_stall_seconds_bucket{le="0.25"', "0+50x60"),
            ('perdure_loop_stall_seconds_bucket{le="1"', "0+100x60"),
            ('perdure_loop_stall_seconds_bucket{le="+Inf"', "0+100x60"),
        ],
        [
            ('perdure_loop_stall_seconds_bucket{le="0.25"', "0+100x60"),
            ('perdure_loop_stall_seconds_bucket{le="+Inf"', "0+100x60"),
        ],
    ),
    "PerdureTasksLost": ([("perdure_tasks_lost_total", "0x55 40x5")], [("perdure_tasks_lost_total", "0x55 3x5")]),
    "PerdureSchedulesMissed": (
        [("perdure_schedules_missed_total", "0x50 1x10")],
        [("perdure_schedules_missed_total", "1x60")],
    ),
    "PerdureNotificationsFailing": (
        [("perdure_notifications_failed_total", "0+2x60")],
        [("perdure_notifications_failed_total", "0x50 0+1x10")],
    ),
}
"""What each alert must fire for, and what it must not: series by the minute, for an hour."""


def _series(given: list[Series]) -> list[dict[str, str]]:
    named = [(name if "{" in name else name + "{", values) for name, values in given]
    return [{"series": f"{name}{'' if name.endswith('{') else ','}{ME}}}", "values": values} for name, values in named]


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "is quiet"])
def test_alerts_fire_when_they_should(fires: bool, tmp_path: Path) -> None:
    tests = []
    for alert in ALERTS:
        series = CASES[alert["alert"]][0 if fires else 1]
        # promtool compares all labels and annotations; a query for the alert compares what matters.
        query = f'count(ALERTS{{alertname="{alert["alert"]}",alertstate="firing"}}) or vector(0)'
        expected = [{"labels": "{}", "value": int(fires)}]
        test = {"expr": query, "eval_time": "59m", "exp_samples": expected}
        tests.append({"interval": "1m", "input_series": _series(series), "promql_expr_test": [test]})
    file = tmp_path / "alerts.test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool = shutil.which("promtool")
    assert promtool, "install Debian's prometheus: just setup"
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_and_a_runbook() -> None:
    assert set(CASES) == {alert["alert"] for alert in ALERTS}
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning")
        url = alert["annotations"]["runbook_url"]
        assert url == f"{RUNBOOKS.relative_to(ROOT)}#{alert['alert'].lower()}"
        assert alert["alert"].lower() in anchors_of(RUNBOOKS), f"{alert['alert']} has no runbook"


def test_every_runbook_belongs_to_an_alert_and_has_the_same_parts() -> None:
    sections = re.split(r"^## ", RUNBOOKS.read_text(), flags=re.MULTILINE)[1:-1]
    assert [section.split("\n")[0] for section in sections] == [alert["alert"] for alert in ALERTS]
    for section in sections:
        for part in ("**Means:**", "**Urgent:**", "\n1. ", "**Why it happens:**"):
            assert part in section, section[:200]


def commands() -> list[str]:
    return sorted({found[1] for found in re.finditer(r"`perdure ([^`]+)`", RUNBOOKS.read_text())})


def test_every_command_of_the_runbooks_exists() -> None:
    with Failures() as failures:
        for command in commands():
            with failures.of(f"perdure {command}"):
                check_command(command)


def check_command(command: str) -> None:
    words = canonical(command.split())
    assert words[0] in COMMANDS, f"{words[0]} is no command"
    found: Any = load(COMMANDS[words[0]].module)[words[0]]
    nested = getattr(found, "commands", {})
    if nested and len(words) > 1 and not words[1].startswith("-") and not words[1].isupper():
        assert words[1] in nested, f"{words[0]} has no {words[1]}"
        found = nested[words[1]]
    flags = {flag for parameter in found.params for flag in parameter.opts}
    unknown = {word for word in words if word.startswith("--")} - flags
    assert not unknown, f"it has no {', '.join(sorted(unknown))}"
