"""The Helm chart: rendered by Helm itself and held against the schemas of three versions of Kubernetes. It has run in no cluster here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg
import jsonschema
import kubernetes_validate
import pytest
import yaml

from perdure.store import roles

TESTS = Path(__file__).parent
CHART = TESTS.parents[1] / "deploy/helm/perdure"
HELM = TESTS / "helm/node_modules/.bin/helm"
VALUES = {"defaults": None, "everything": "everything.yaml", "external secrets": "external-secrets.yaml"}
VERSIONS = ("1.29", "1.34", "1.37")
"""The oldest that the chart admits, one between, and the newest that kubernetes-validate knows."""

pytestmark = pytest.mark.skipif(not HELM.exists(), reason="Helm is not installed: `just setup` does")

# Of the resources of operators, as far as the chart uses them: kubernetes-validate knows only Kubernetes' own.
OPERATORS = yaml.safe_load((TESTS / "operators.yaml").read_text())


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)


@cache
def rendered(values: str | None, version: str = "1.34", *more: str) -> tuple[dict[str, Any], ...]:
    chosen = ["--values", str(TESTS / "values" / values)] if values else []
    made = helm("template", "p", str(CHART), "--namespace", "flows", "--kube-version", f"{version}.0", *chosen, *more)
    assert made.returncode == 0, made.stderr
    return tuple(one for one in yaml.safe_load_all(made.stdout) if one)


def found(documents: tuple[dict[str, Any], ...], kind: str, name: str = "") -> dict[str, Any]:
    (one,) = (d for d in documents if d["kind"] == kind and name in d["metadata"]["name"])
    return one


def pods(documents: tuple[dict[str, Any], ...]) -> dict[str, dict[str, Any]]:
    return {
        d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("Deployment", "Job")
    }


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in pod["containers"][0]["env"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES)
def test_every_resource_is_valid(values: str, version: str) -> None:
    documents = rendered(VALUES[values], version)
    assert len(documents) >= 6
    for one in documents:
        if schema := OPERATORS.get(one["kind"]):
            jsonschema.validate(one, schema)
        else:
            kubernetes_validate.validate(one, version, strict=True)
    names = [(d["kind"], d["metadata"]["name"]) for d in documents]
    assert len(set(names)) == len(names)


def test_a_resource_with_a_misspelt_field_is_not() -> None:
    (one,) = (dict(d) for d in rendered(None) if d["kind"] == "Deployment")
    one["spec"] = one["spec"] | {"replica": 2}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, "1.34", strict=True)


@pytest.mark.parametrize("values", [v for v in VALUES.values() if v])
def test_helm_lint_finds_nothing(values: str) -> None:
    made = helm("lint", "--strict", str(CHART), "--values", str(TESTS / "values" / values))
    assert made.returncode == 0, made.stdout
    assert "WARNING" not in made.stdout


REFUSED = {
    "server.replicas=0": "server.replicas: Must be greater than or equal to 1",
    "colour=red": "Additional property colour is not allowed",
    "keda.source=redis": "keda.source",
    "server.publicUrl=flows.example": "server.publicUrl",
    "workers[0].name=shop": "modules is required",
    "server.ingress.enabled=true": "server.ingress",
}


@pytest.mark.parametrize("value", REFUSED)
def test_values_that_mean_nothing_are_refused_before_anything_is_installed(value: str) -> None:
    made = helm("template", "p", str(CHART), "--kube-version", "1.34.0", "--set", value)
    assert made.returncode != 0
    assert REFUSED[value] in made.stderr


@pytest.mark.parametrize("values", VALUES.values())
def test_pods_satisfy_the_restricted_pod_security_standard(values: str | None) -> None:
    for name, pod in pods(rendered(values)).items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert all({"emptyDir", "secret"} & set(volume) for volume in pod["volumes"]), name
        assert pod["automountServiceAccountToken"] is ("worker-jobs" in name), name


def test_the_owner_migrates_and_servers_connect_as_the_engine() -> None:
    for values, keys in ((None, ("owner", "server")), ("everything.yaml", ("owner", "server"))):
        of = pods(rendered(values))
        migration, server = of["p-perdure-migrate"], of["p-perdure-server"]
        assert migration["containers"][0]["args"] == ["migrate", "--roles"]
        assert "--no-migrate" in server["containers"][0]["args"]
        dsns = [environment(pod)["PERDURE_DSN"]["secretKeyRef"]["key"] for pod in (migration, server)]
        assert tuple(dsns) == keys
        assert all("PERDURE_DSN" not in environment(pod) for name, pod in of.items() if "worker" in name)
    hook = found(rendered(None), "Job")["metadata"]["annotations"]
    assert hook["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "p-perdure-migrate" not in pods(rendered("external-secrets.yaml"))


def effective(pod: dict[str, Any], tmp_path: Path) -> str:
    """What the process of this pod would run with, as it says itself. Files are made where the pod has them."""
    given = {
        name: str(value if isinstance(value, str) else "postgresql://a@b/c") for name, value in environment(pod).items()
    }
    for name, value in given.items():
        if value.startswith("/tls/"):
            (tmp_path / Path(value).name).write_text("")
            given[name] = str(tmp_path / Path(value).name)
    program = [str(Path(sys.executable).parent / "perdure"), *pod["containers"][0]["args"], "--print-config"]
    given["PATH"] = os.environ["PATH"]
    made = subprocess.run(program, env=given, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.mark.usefixtures("interpreter")
def test_what_the_chart_sets_is_what_servers_and_workers_read(tmp_path: Path) -> None:
    """A variable that no setting reads would be ignored in silence."""
    of = pods(rendered("everything.yaml"))
    for name in ("p-perdure-server", "p-perdure-worker-shop"):
        shown = effective(of[name], tmp_path)
        for variable in set(environment(of[name])) - {"SHOP_URL"}:
            assert re.search(rf"# {variable}$", shown, re.MULTILINE), (variable, shown)
    served = environment(of["p-perdure-server"])["PERDURE_ALLOWED_HOSTS"].split(",")
    assert {"p-perdure", "p-perdure.flows", "p-perdure.flows.svc", "flows.internal"} == set(served)


def test_a_server_has_the_time_to_drain() -> None:
    for values in VALUES.values():
        pod = pods(rendered(values))["p-perdure-server"]
        arguments = pod["containers"][0]["args"]
        drain = int(arguments[arguments.index("--drain") + 1])
        assert int(environment(pod)["PERDURE_NOT_READY"]) < drain < pod["terminationGracePeriodSeconds"]
        probe = pod["containers"][0]["readinessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] < int(environment(pod)["PERDURE_NOT_READY"])


def test_labels_of_selectors_are_those_of_pods() -> None:
    documents = rendered("everything.yaml")
    labels = [d["spec"]["template"]["metadata"]["labels"] for d in documents if d["kind"] in ("Deployment", "Job")]
    selectors = [
        (
            d["metadata"]["name"],
            (s.get("matchLabels") or s if (s := d["spec"].get("selector") or d["spec"]["podSelector"]) else {}),
        )
        for d in documents
        if d["kind"] in ("Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy")
    ]
    assert len(selectors) >= 9
    for name, selector in selectors:
        assert any(selector.items() <= one.items() for one in labels), (name, selector)


def test_workers_scale_on_the_queue_that_they_serve() -> None:
    scaled = found(rendered("everything.yaml"), "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"] == {"name": "p-perdure-worker-shop"}
    assert scaled["triggers"][0]["metadata"]["query"] == 'max(perdure_queue_depth{namespace="default",queue="reports"})'
    deployment = found(rendered("everything.yaml"), "Deployment", "worker-shop")["spec"]
    assert "replicas" not in deployment, "Helm would set them back at every upgrade"


async def test_the_query_of_keda_counts_with_the_readers_rights(dsn: str) -> None:
    scaled = found(rendered("external-secrets.yaml"), "ScaledObject")["spec"]["triggers"][0]
    login = found(rendered("external-secrets.yaml"), "TriggerAuthentication")
    assert scaled["authenticationRef"]["name"] == login["metadata"]["name"]
    c = await asyncpg.connect(dsn)
    try:
        transaction = c.transaction()
        await transaction.start()
        await c.execute(
            "insert into perdure.task_queue"
            " (id, ns, run_id, seq, queue, name, run_at, status, attempt, lost, scheduled_at, options, input) "
            "select gen_random_uuid(), 1, gen_random_uuid(), n, case when n < 4 then 'default' else 'other' end, 'step', "
            "now(), 'pending', 1, 0, now(), '', '' from generate_series(1, 5) n"
        )
        await c.execute("create role keda_reader nologin")
        for statement in roles.statements("keda_reader", roles.READER_GRANTS, roles.READER_FUNCTIONS):
            await c.execute(statement)
        await c.execute("set local role keda_reader")
        assert await c.fetchval(scaled["metadata"]["query"]) == 3
        await transaction.rollback()
    finally:
        await c.close()


def test_the_alerts_and_the_dashboard_are_those_of_the_folder_deploy() -> None:
    documents = rendered("everything.yaml")
    deploy = CHART.parents[1]
    rule = found(documents, "PrometheusRule")["spec"]
    assert rule == yaml.safe_load((deploy / "prometheus/alerts.yml").read_text())
    dashboard = found(documents, "ConfigMap")["data"]["perdure.json"]
    assert dashboard == (deploy / "grafana/perdure.json").read_text().rstrip("\n")
    assert found(documents, "ServiceMonitor")["spec"]["jobLabel"] == "app.kubernetes.io/name"
