"""The chart, rendered by the real helm."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.api import parse_job
from finetune_operator.runtime.settings import Settings
from tests import rbac, snapshots
from tests.integration.chart.conftest import CHART, Helm, Render, documents
from tests.unit.chart.test_values import RESERVED

HERE = Path(__file__).parent
CRDS = Path(__file__).parents[3] / "crds"

#: Name of the snapshot -> values.
VARIANTS = {
    "default": ("crds.install=false",),
    "namespaced": ("crds.install=false", "replicas=1", "namespaces={team-a,team-b}"),
    "everything": (
        "crds.install=false",
        "image.repository=registry.example/finetune-operator",
        f"image.digest=sha256:{'0' * 64}",
        "imagePullSecrets[0].name=pull",
        "serviceAccount.annotations.iam\\.gke\\.io/gcp-service-account=operator@example.iam.gserviceaccount.com",
        "operator.logLevel=debug",
        "ledger.uri=gs://finetune-ledger",
        "operator.env[0].name=HTTPS_PROXY",
        "operator.env[0].value=http://proxy.example:3128",
        "podLabels.team=ml",
        "podAnnotations.note=here",
        "nodeSelector.pool=system",
        "tolerations[0].operator=Exists",
        "priorityClassName=system-cluster-critical",
        "metrics.serviceMonitor.enabled=true",
        "metrics.serviceMonitor.labels.release=prometheus",
        "metrics.podMonitoring.enabled=true",
        "networkPolicy.enabled=true",
        r"networkPolicy.ingressFrom[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=monitoring",
        "networkPolicy.extraEgress[0].to[0].ipBlock.cidr=10.0.0.8/32",
        "networkPolicy.extraEgress[0].ports[0].port=3128",
        "nameOverride=tuning",
        "fullnameOverride=tuning-operator",
        "commonLabels.cost-center=ml",
        "operator.env[1].name=HTTP_PROXY",
        "operator.env[1].valueFrom.configMapKeyRef.name=proxy",
        "operator.env[1].valueFrom.configMapKeyRef.key=http",
        "operator.envFrom[0].configMapRef.name=more",
        "caBundle.configMap=corporate-ca",
        "caBundle.key=ca.pem",
        "extraVolumes[0].name=more",
        "extraVolumes[0].configMap.name=more",
        "extraVolumeMounts[0].name=more",
        "extraVolumeMounts[0].mountPath=/etc/more",
        "livenessProbe.periodSeconds=30",
        "readinessProbe.failureThreshold=5",
        "revisionHistoryLimit=1",
        "topologySpreadConstraints[0].maxSkew=1",
        r"topologySpreadConstraints[0].topologyKey=topology\.kubernetes\.io/zone",
        "topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
        "dnsPolicy=None",
        "dnsConfig.nameservers={10.0.0.10}",
        "metrics.tls.secret=metrics",
        "metrics.tls.clientAuth=true",
        "metrics.serviceMonitor.tlsConfig.serverName=finetune",
        "metrics.serviceMonitor.relabelings[0].action=labeldrop",
        "metrics.serviceMonitor.relabelings[0].regex=pod",
        "metrics.serviceMonitor.metricRelabelings[0].action=drop",
        "metrics.podMonitoring.tls.insecureSkipVerify=true",
        "metrics.alerts.kind=PrometheusRule",
        "metrics.alerts.labels.release=prometheus",
        "metrics.alerts.repository=https://git.example/finetune/blob/main/",
        "test.namespace=team-a",
        "test.profile=gke-v6e",
        "notifications.url=https://notices.example/finetune",
        "notifications.keySecret=webhook",
    ),
}

READ = frozenset({"get", "list", "watch"})
WRITE = READ | {"create", "update", "patch", "delete", "deletecollection"}
#: Role for people -> the rule that it grants, and Kubernetes' roles that include it.
PEOPLE = {
    "view": (rbac.PolicyRule("tpu-finetune.dev", "finetunejobs", READ), {"view", "edit", "admin"}),
    "edit": (rbac.PolicyRule("tpu-finetune.dev", "finetunejobs", WRITE), {"edit", "admin"}),
    "profile-view": (
        rbac.PolicyRule("tpu-finetune.dev", "finetuneprofiles", READ),
        {"view", "edit", "admin"},
    ),
    "profile-admin": (rbac.PolicyRule("tpu-finetune.dev", "finetuneprofiles", WRITE), set()),
}


def rules(role: dict[str, Any]) -> set[rbac.PolicyRule]:
    return {
        rbac.PolicyRule(group, resource, frozenset(rule["verbs"]))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def roles(objects: list[dict[str, Any]], kind: str) -> dict[tuple[str, str], set[rbac.PolicyRule]]:
    """Namespace and name of each of the operator's roles -> rules."""
    return {
        (found["metadata"].get("namespace", ""), found["metadata"]["name"]): rules(found)
        for found in objects
        if found["kind"] == kind and found not in people(objects).values()
    }


def people(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The roles for people, by the suffix that their names add to the release's."""
    named = {found["metadata"]["name"]: found for found in objects if found["kind"] == "ClusterRole"}
    return {
        suffix: named[f"finetune-operator-{suffix}"]
        for suffix in PEOPLE
        if f"finetune-operator-{suffix}" in named
    }


def aggregated_to(role: dict[str, Any]) -> set[str]:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    return {label.removeprefix(prefix) for label in role["metadata"]["labels"] if label.startswith(prefix)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rendered_objects(render: Render, variant: str) -> None:
    text = yaml.safe_dump_all(render(*VARIANTS[variant]), sort_keys=False, width=110)
    snapshots.check(HERE / "snapshots" / f"{variant}.yaml", text)


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [found for found in objects if found["kind"] == kind]


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_upgrade_ends_no_pod_before_a_new_one_is_ready(render: Render, replicas: int) -> None:
    (deployment,) = of_kind(render(f"replicas={replicas}"), "Deployment")
    assert deployment["spec"]["replicas"] == replicas
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }


def test_two_pods_are_spread_over_hosts_and_evicted_one_at_a_time(render: Render) -> None:
    objects = render()
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    selector = deployment["spec"]["selector"]
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    # A pod that is not ready, for example beside an earlier release, does not keep its node from being drained.
    assert budget["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": selector,
    }
    (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )
    assert spread["labelSelector"] == selector


def test_a_spread_of_ones_own_replaces_the_default_and_counts_the_same_pods(render: Render) -> None:
    zone = "topologySpreadConstraints[0].topologyKey=zone"
    more = (
        "topologySpreadConstraints[0].maxSkew=2",
        "topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule",
    )
    (deployment,) = of_kind(render(zone, *more), "Deployment")
    assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] == [
        {
            "maxSkew": 2,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": deployment["spec"]["selector"],
        }
    ]


def test_a_spread_over_all_pods_stays_one(helm: Helm) -> None:
    given = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    done = helm("template", "x", str(CHART), "--set-json", f"topologySpreadConstraints={json.dumps([given])}")
    assert done.returncode == 0, done.stderr
    (deployment,) = of_kind(documents(done.stdout), "Deployment")
    assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] == [given]


def test_other_names_and_labels_are_those_of_all_objects(render: Render) -> None:
    objects = render(
        "nameOverride=tuning", "fullnameOverride=ours", "commonLabels.team=ml", "test.namespace=x"
    )
    objects = [each for each in objects if each["kind"] != "CustomResourceDefinition"]
    assert {each["kind"] for each in objects if not each["metadata"]["name"].startswith("ours")} == {
        "FineTuneJob"
    }
    assert all(each["metadata"]["labels"]["team"] == "ml" for each in objects)
    (deployment,) = of_kind(objects, "Deployment")
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": "tuning", "app.kubernetes.io/instance": "finetune-operator"}
    assert deployment["spec"]["template"]["metadata"]["labels"]["team"] == "ml"


def test_a_label_of_one_object_replaces_that_of_all(render: Render) -> None:
    monitoring = ("metrics.serviceMonitor.enabled=true", "metrics.alerts.kind=PrometheusRule")
    ours = ("podLabels.team=b", "metrics.serviceMonitor.labels.team=c", "metrics.alerts.labels.team=d")
    objects = render("commonLabels.team=a", *monitoring, *ours)
    (deployment,) = of_kind(objects, "Deployment")
    labels = [
        deployment["metadata"]["labels"],
        deployment["spec"]["template"]["metadata"]["labels"],
        *(of_kind(objects, kind)[0]["metadata"]["labels"] for kind in ("ServiceMonitor", "PrometheusRule")),
    ]
    assert [each["team"] for each in labels] == ["a", "b", "c", "d"]


def test_names_that_yaml_reads_as_numbers_are_texts(helm: Helm) -> None:
    name = "1234567"
    settings = f"namespaces={{{name}}},nameOverride={name},test.namespace={name}"
    more = ("--set", "crds.install=false", "--set-string", settings)
    done = helm("template", name, str(CHART), "--namespace", name, *more)
    assert done.returncode == 0, done.stderr
    for found in documents(done.stdout):
        texts = [*found["metadata"]["labels"].values(), found["metadata"].get("namespace", "")]
        texts += [subject["namespace"] for subject in found.get("subjects", ())]
        assert all(isinstance(text, str) for text in texts), found["metadata"]


def test_the_pod_of_the_test_runs_where_the_operator_does(render: Render) -> None:
    settings = (
        "nodeSelector.pool=system",
        "tolerations[0].operator=Exists",
        "priorityClassName=high",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
        "podLabels.cost-center=ml",
    )
    objects = render("test.namespace=team-a", *settings)
    ((pod,), (deployment,)) = (of_kind(objects, kind) for kind in ("Pod", "Deployment"))
    operator = deployment["spec"]["template"]["spec"]
    for field in ("nodeSelector", "tolerations", "affinity"):
        assert pod["spec"][field] == operator[field]
    assert "priorityClassName" not in pod["spec"], "the namespace may not admit it"
    assert pod["metadata"]["labels"]["cost-center"] == "ml"
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "test"


def test_the_test_is_refused_in_a_namespace_that_the_release_does_not_serve(helm: Helm) -> None:
    done = helm("template", "x", str(CHART), "--set", "namespaces={team-a,team-c},test.namespace=team-b")
    assert done.returncode != 0
    assert "test.namespace: the release does not serve team-b, but team-a, team-c." in done.stderr


def test_the_test_waits_for_a_time_also_where_the_value_is_unset(render: Render) -> None:
    (pod,) = of_kind(render("test.namespace=team-a", "test.timeout=null"), "Pod")
    assert pod["spec"]["containers"][0]["command"][-2:] == ["--timeout", "20m"]


def test_the_test_has_no_more_rights_than_to_read_its_job_and_is_not_the_operator(render: Render) -> None:
    assert not any("test" in each["metadata"]["name"] for each in render())
    (job,) = of_kind(render("test.namespace=team-a"), "FineTuneJob")
    parse_job(job)
    objects = render("test.namespace=team-a", "test.job.planOnly=false")
    hooks = [each for each in objects if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    assert {each["metadata"]["namespace"] for each in hooks} == {"team-a"}
    (role,) = of_kind(hooks, "Role")
    (rule,) = role["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["finetunejobs"], ["helm-test"])
    assert set(rule["verbs"]) == READ
    (job,) = of_kind(hooks, "FineTuneJob")
    assert job["spec"]["planOnly"] is True
    (pod,) = of_kind(hooks, "Pod")
    selected = of_kind(objects, "Deployment")[0]["spec"]["selector"]["matchLabels"]
    assert not selected.items() <= pod["metadata"]["labels"].items()


def test_one_pod_can_be_evicted(render: Render) -> None:
    objects = render("replicas=1")
    assert not of_kind(objects, "PodDisruptionBudget")
    (deployment,) = of_kind(objects, "Deployment")
    assert "topologySpreadConstraints" not in deployment["spec"]["template"]["spec"]


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rights_are_those_that_the_operator_uses(render: Render) -> None:
    objects = render()
    assert roles(objects, "ClusterRole") == {
        ("", "finetune-operator"): {*rbac.JOB_RULES, *rbac.CLUSTER_RULES},
    }
    assert roles(objects, "Role") == {("finetune-system", "finetune-operator-own"): {*rbac.OWN_RULES}}


def test_people_write_jobs_without_their_status_and_profiles_only_as_their_administrator(
    render: Render,
) -> None:
    found = people(render())
    assert {name: (rules(role), aggregated_to(role)) for name, role in found.items()} == {
        name: ({rule}, holders) for name, (rule, holders) in PEOPLE.items()
    }


def test_roles_for_people_need_not_be_part_of_kubernetes_own(render: Render) -> None:
    found = people(render("rbac.aggregate=false"))
    assert found.keys() == PEOPLE.keys()
    assert not any(aggregated_to(role) for role in found.values())
    assert not people(render("rbac.create=false"))


def test_with_namespaces_only_profiles_nodes_and_roles_are_read_cluster_wide(render: Render) -> None:
    objects = render("namespaces={team-a,team-b}")
    assert roles(objects, "ClusterRole") == {("", "finetune-operator"): {*rbac.CLUSTER_RULES}}
    assert roles(objects, "Role") == {
        ("finetune-system", "finetune-operator-own"): {*rbac.OWN_RULES, *rbac.RECORD_RULES},
        ("team-a", "finetune-operator"): {*rbac.JOB_RULES},
        ("team-b", "finetune-operator"): {*rbac.JOB_RULES},
    }


@pytest.mark.parametrize("settings", [(), ("namespaces={team-a}",)])
def test_every_role_is_bound_to_the_operators_account_alone(
    render: Render, settings: tuple[str, ...]
) -> None:
    objects = render(*settings)
    for kind in ("Role", "ClusterRole"):
        bindings = [found for found in objects if found["kind"] == f"{kind}Binding"]
        bound = {(b["metadata"].get("namespace", ""), b["roleRef"]["name"]) for b in bindings}
        assert bound == set(roles(objects, kind))
        account = {"kind": "ServiceAccount", "name": "finetune-operator", "namespace": "finetune-system"}
        assert all(binding["subjects"] == [account] for binding in bindings)


def test_no_right_touches_secrets_or_uses_wildcards(render: Render) -> None:
    for found in render("namespaces={team-a}") + render():
        for rule in found.get("rules", []):
            assert "secrets" not in rule["resources"]
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_what_judges_jobs_judges_them_alone_and_not_their_status(render: Render) -> None:
    (policy,) = (found for found in render() if found["kind"] == "ValidatingAdmissionPolicy")
    (binding,) = (found for found in render() if found["kind"] == "ValidatingAdmissionPolicyBinding")
    assert policy["spec"]["matchConstraints"] == {
        "resourceRules": [
            {
                "apiGroups": ["tpu-finetune.dev"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["finetunejobs"],
            }
        ]
    }
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_the_admission_policy_can_be_left_out(render: Render) -> None:
    kinds = [found["kind"] for found in render("admissionPolicy.enabled=false")]
    assert not any("Admission" in kind for kind in kinds)


def test_crds_are_those_of_the_repository_and_are_kept(render: Render) -> None:
    rendered = {
        found["metadata"]["name"]: found for found in render() if found["kind"] == "CustomResourceDefinition"
    }
    written = {
        crd["metadata"]["name"]: crd
        for crd in map(yaml.safe_load, (p.read_text() for p in CRDS.glob("*.yaml")))
    }
    assert {name: crd["spec"] for name, crd in rendered.items()} == {
        n: crd["spec"] for n, crd in written.items()
    }
    assert all(
        crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in rendered.values()
    )


def test_crds_can_be_left_to_others_or_to_uninstall(render: Render) -> None:
    kinds = [found["kind"] for found in render("crds.install=false")]
    assert "CustomResourceDefinition" not in kinds
    for crd in render("crds.keep=false"):
        assert "helm.sh/resource-policy" not in crd["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("image.digets=sha256:0", "digets"),
        ("replicas=0", "/replicas"),
        ("image.digest=latest", "/image/digest"),
        ("namespaces={Team_A}", "/namespaces/0"),
        ("imagePullSecrets={pull}", "/imagePullSecrets/0"),
        ("operator.logLevel=loud", "/operator/logLevel"),
        ("operator.env[0].name=HTTPS_PROXY", "/operator/env/0"),
        ("resources=null", "resources"),
        ("rbac.aggregate=yes", "/rbac/aggregate"),
        ("rbac.protect=yes", "/rbac/protect"),
        ("networkPolicy.ingressFrom[0].namespace=monitoring", "/networkPolicy/ingressFrom/0"),
        ("metrics.podMonitoring.interval=0s", "/metrics/podMonitoring/interval"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_place(helm: Helm, setting: str, place: str) -> None:
    done = helm("template", "x", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert place in done.stderr


def test_the_chart_sets_what_is_reserved_itself_so_that_no_other_source_can(render: Render) -> None:
    """A variable of ``env`` precedes one of ``envFrom``."""
    (deployment,) = of_kind(
        render("caBundle.configMap=ca", "operator.envFrom[0].secretRef.name=x"), "Deployment"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {entry["name"] for entry in container["env"]} == {*RESERVED}


def test_environment_that_the_chart_sets_or_relies_on_cannot_be_overridden(helm: Helm) -> None:
    done = helm(
        "template", "x", str(CHART), "--set", f"operator.env[0].name={RESERVED[0]},operator.env[0].value=1"
    )
    assert done.returncode != 0
    assert "/operator/env/0/name" in done.stderr


def test_labels_that_select_the_pod_cannot_be_overridden(helm: Helm) -> None:
    done = helm("template", "x", str(CHART), "--set", r"podLabels.app\.kubernetes\.io/name=other")
    assert done.returncode != 0
    assert "/podLabels" in done.stderr


def test_the_longest_release_name_still_makes_dns_labels(helm: Helm) -> None:
    done = helm("template", "r" * 53, str(CHART), "--set", "crds.install=false")
    assert done.returncode == 0, done.stderr
    objects = [found for found in yaml.safe_load_all(done.stdout) if found]
    # the names of roles are path segments, which may be longer
    names = [found["metadata"]["name"] for found in objects if "Role" not in found["kind"]]
    assert max(map(len, names)) <= 63
    assert not any(name.endswith("-") for name in names)


def test_a_release_name_with_dots_makes_names_without(helm: Helm) -> None:
    done = helm("template", "ft.prod", str(CHART), "--set", "crds.install=false")
    assert done.returncode == 0, done.stderr
    names = {found["metadata"]["name"] for found in documents(done.stdout) if found["kind"] == "Service"}
    assert names == {"ft-prod-finetune-operator-metrics"}


def test_the_operators_environment_is_one_that_it_takes(render: Render) -> None:
    """The environment as the container reads it. A variable that Settings does not define would be ignored silently."""
    rendered = render("namespaces={team-a,team-b}", "ledger.uri=gs://finetune-ledger")
    (deployment,) = (found for found in rendered if found["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    environment = {entry["name"]: str(entry["value"]) for entry in pod["containers"][0]["env"]}
    assert {name.removeprefix("FINETUNE_").lower() for name in environment} <= set(Settings.model_fields)
    settings = Settings.from_environment(environment)
    assert settings.namespaces == ["team-a", "team-b"]
    assert settings.ledger == "gs://finetune-ledger"
    assert settings.lease_name == "finetune-operator"
    assert settings.metrics_tls_dir is None
    assert settings.drain_seconds < pod["terminationGracePeriodSeconds"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert ports == {"health": settings.health_port, "metrics": settings.metrics_port}


@pytest.mark.parametrize(
    ("kind", "group"), [("PrometheusRule", "monitoring.coreos.com"), ("Rules", "monitoring.googleapis.com")]
)
def test_the_alerts_are_those_of_the_file(render: Render, kind: str, group: str) -> None:
    (made,) = (found for found in render(f"metrics.alerts.kind={kind}") if found["kind"] == kind)
    assert made["apiVersion"] == f"{group}/v1"
    # The leader of another release in the same Prometheus is none of this one.
    text = (CHART / "alerts.yaml").read_text()
    own = text.replace("absent(finetune_leader)", 'absent(finetune_leader{namespace="finetune-system"})')
    assert own != text
    assert made["spec"] == yaml.safe_load(own)


@pytest.mark.parametrize(
    ("settings", "job"),
    [
        (["metrics.serviceMonitor.enabled=true"], ',job=~"finetune-operator-metrics"'),
        (["metrics.podMonitoring.enabled=true"], ',job=~"finetune-operator"'),
        (
            ["metrics.serviceMonitor.enabled=true", "metrics.podMonitoring.enabled=true"],
            ',job=~"finetune-operator-metrics|finetune-operator"',
        ),
        (
            [
                "metrics.serviceMonitor.enabled=true",
                "metrics.serviceMonitor.relabelings[0].targetLabel=job",
                "metrics.serviceMonitor.relabelings[0].replacement=another",
            ],
            "",
        ),
    ],
)
def test_the_leader_of_another_release_in_the_namespace_does_not_count_as_this_ones(
    render: Render, settings: list[str], job: str
) -> None:
    found = render("metrics.alerts.kind=Rules", *settings)
    (rules,) = (each for each in found if each["kind"] == "Rules")
    expression = rules["spec"]["groups"][0]["rules"][0]["expr"]
    assert f'absent(finetune_leader{{namespace="finetune-system"{job}}})' in expression


def test_an_account_that_is_not_created_must_be_named(helm: Helm) -> None:
    done = helm("template", "x", str(CHART), "--set", "serviceAccount.create=false")
    assert done.returncode != 0
    assert "serviceAccount.name: name the ServiceAccount to use" in done.stderr
