"""The Job of an attempt: valid by the API's schema, and nothing of a value is read as a reference."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from perdure.executors.kubernetes.manifest import Wanted, make_manifest, read_spec
from perdure.executors.port import Job, JobRefused
from tests.executors.agents import assignment

FULL: dict[str, Any] = {
    "image": "registry.example/etl:7",
    "command": ["etl", "load", 5, True],
    "input": {"day": "2026-11-16"},
    "env": {"MODE": "fast", "N": 3},
    "cwd": "/work",
    "result": "log",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}},
    "service_account": "etl",
    "node_selector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "image_pull_policy": "IfNotPresent",
    "image_pull_secrets": ["registry"],
    "env_from": ["credentials"],
    "priority_class": "batch",
    "labels": {"team": "data"},
    "annotations": {"note": "x"},
    "grace_s": 5,
}


def job(spec: dict[str, Any], **options: Any) -> Job:
    a = assignment("kubernetes", spec, **options)
    return Job(name=a.job, assignment=a)


def manifest(one: Job, has_store: bool = False) -> dict[str, Any]:
    wanted: Wanted = read_spec(one, "", has_store)
    return make_manifest(one, wanted, image="", spec_url="s3://b/spec.json", ttl_s=60, env_from=("store",))


@pytest.mark.parametrize("version", ["1.34"])
@pytest.mark.parametrize("spec", [FULL, {"image": "i", "command": "echo 1"}, {"image": "i", "python": "a:b"}])
def test_a_job_is_valid_by_the_schema_of_the_api(spec: dict[str, Any], version: str) -> None:
    one = manifest(job(spec, timeout_us=5_000_000), has_store=True)
    kubernetes_validate.validate(one, version, strict=True)
    assert one["spec"]["backoffLimit"] == 0 and one["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_a_job_is_labelled_with_its_run_its_task_and_its_attempt() -> None:
    one = job({"image": "i", "command": ["x"], "labels": {"perdure/run": "forged"}}, attempt=3)
    for labels in (manifest(one)["metadata"]["labels"], manifest(one)["spec"]["template"]["metadata"]["labels"]):
        assert labels["perdure/attempt"] == "3"
        assert len(labels["perdure/run"]) == len(labels["perdure/task"]) == 36


def test_a_value_is_never_a_reference_to_a_variable_of_the_container() -> None:
    spec = {"image": "i", "command": ["echo", "$(SECRET)"], "env": {"A": "$(SECRET)"}, "input": "$(SECRET)"}
    container = manifest(job(spec))["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["echo", "$$(SECRET)"]
    values = {e["name"]: e["value"] for e in container["env"]}
    assert values["A"] == "$$(SECRET)" and values["PERDURE_INPUT"] == '"$$(SECRET)"'


def test_no_token_of_the_cluster_is_mounted_unless_an_account_is_named() -> None:
    assert (
        manifest(job({"image": "i", "command": ["x"]}))["spec"]["template"]["spec"]["automountServiceAccountToken"]
        is False
    )
    assert "automountServiceAccountToken" not in manifest(job(FULL))["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"command": ["x"]}, "no image"),
        ({"image": "i"}, "command and python"),
        ({"image": "i", "command": ["x"], "python": "a:b"}, "command and python"),
        ({"image": "i", "python": "a:b"}, "object store"),
        ({"image": "i", "command": ["x"], "result": "store"}, "object store"),
        ({"image": "i", "command": ["x"], "result": "odd"}, "store or log"),
        ({"image": "i", "command": []}, "empty"),
        ({"image": "i", "command": ["x"], "grace": 5}, "grace"),
        ({"image": 5, "command": ["x"]}, "image"),
        ({"image": "i", "command": ["x"], "input": "x" * 200_000}, "INPUT_BYTES_MAX"),
    ],
)
def test_a_spec_that_cannot_be_run_is_refused_with_the_reason(spec: dict[str, Any], why: str) -> None:
    with pytest.raises(JobRefused, match=why):
        manifest(job(spec))
