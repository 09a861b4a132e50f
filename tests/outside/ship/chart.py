"""Lints, packages and renders the chart by Helm's own engine, and checks each rendering: values fit their schema, objects
fit Kubernetes' schemas and agree with one another, containers have no needless rights, recipes in docs/ name the service.

Usage: chart.py CHART BINARY: the container of the Deployment runs BINARY.
"""

import base64
import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path

import helm_python
import kubernetes_validate
import pod
import yaml

ROOT = Path(__file__).resolve().parents[3]
KUBERNETES = "1.30"
# Custom resources: kubernetes-validate has the schemas of Kubernetes only.
WITHOUT_SCHEMA = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}
# As the unit of systemd says.
STOPS_WITHIN_S = 16
RECIPES = ["kubernetes", "envoy-gateway", "istio", "contour"]

# Values, and the kinds of the objects that they render.
ADMIN = "Service of the admin listener"
ALWAYS = {"ConfigMap", "Deployment", "Service", ADMIN, "ServiceAccount"}
CASES = [
    ({}, ALWAYS | {"Secret", "PodDisruptionBudget", "NetworkPolicy"}),
    (
        {
            "autoscaling": {"enabled": True, "maxReplicas": 5},
            "serviceMonitor": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "tlsConfig": {"serverName": "limits.example"},
            },
            "tls": True,
            "service": {"type": "LoadBalancer"},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "grafanaDashboard": {"enabled": True, "annotations": {"grafana_folder": "Limits"}},
            "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/limits"}},
            "httpRoute": {
                "enabled": True,
                "parentRefs": [{"name": "eg", "namespace": "default"}],
                "hostnames": ["limits.example"],
            },
            "fullnameOverride": "limits",
            "secret": {"name": "mine", "dataToken": "data", "keySecret": "key", "storePassword": "password"},
            "store": {"url": "", "urlSecret": {"name": "redis", "key": "url"}},
            "listeners": {"resp": {"enabled": True}, "grpc": {"enabled": False}},
            "networkPolicy": {
                "from": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}],
                "gatewayNamespaces": ["envoy-gateway-system"],
                "adminFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
                "prometheusNamespaces": ["monitoring"],
            },
            "podLabels": {"team": "edge"},
            "podAnnotations": {"a/b": "c"},
            "imagePullSecrets": [{"name": "registry"}],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "edge", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "priorityClassName": "high",
            "extraEnv": [{"name": "SPILLGATE_TELEMETRY__LOG__FORMAT", "value": "json"}],
            "extraVolumes": [{"name": "tls", "secret": {"secretName": "limits-tls"}}],
            "extraVolumeMounts": [{"name": "tls", "mountPath": "/run/tls", "readOnly": True}],
        },
        ALWAYS
        | {"PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule"}
        | {"HTTPRoute", "ConfigMap of the dashboard"},
    ),
    (
        {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}, "store": {"url": ""}},
        ALWAYS | {"Secret"},
    ),
    (
        {"networkPolicy": {"prometheusNamespaces": ["monitoring"]}},
        ALWAYS | {"Secret", "PodDisruptionBudget", "NetworkPolicy"},
    ),
    (
        {
            "networkPolicy": {"storePorts": []},
            "listeners": {"http": {"enabled": False}, "grpc": {"enabled": False}},
            # A condition of a parent chart.
            "enabled": True,
        },
        (ALWAYS - {"Service"}) | {"Secret", "PodDisruptionBudget", "NetworkPolicy"},
    ),
]
REFUSED = [
    {"replica": 3},
    {"replicas": 0},
    {"listeners": {"http": {"enabled": True, "port": 80800}}},
    {"store": {"url": "http://redis"}},
    {"service": {"type": "Ingress"}},
    {"secret": {"dataToken": "data"}},
    {"image": {"pullPolicy": "Sometimes"}},
    {"fullnameOverride": "Limits"},
    {"networkPolicy": {"gatewayNamespaces": "envoy-gateway-system"}},
    {"extraVolumeMounts": [{"name": "tls"}]},
    # A route to callers from outside, without a token.
    {"httpRoute": {"enabled": True, "parentRefs": [{"name": "eg"}]}},
    {"httpRoute": {"enabled": True}, "secret": {"name": "mine", "dataToken": "data"}},
    {"service": {"type": "LoadBalancer"}},
]


def main():
    folder, binary = sys.argv[1:]
    report = helm_python.lint(folder, strict=True)
    assert not report["errors"], report
    chart = packaged(folder)
    for case, kinds in CASES:
        objects = render(chart, "edge", "limits", case)
        found = [kind_of(one) for one in objects]
        assert sorted(found) == sorted(kinds), f"{case}: {found}"
        agree({kind_of(one): one for one in objects}, chart.merge_values(case))
    for case in REFUSED:
        assert not fits(chart, case), f"the schema takes {case}"
    helm = helm_python.helm_sdk_version()
    print(f"the chart is linted and rendered by Helm {helm} in {len(CASES)} ways; its schema refuses {len(REFUSED)} others")
    print(f"objects fit the schemas of Kubernetes {KUBERNETES}")
    print(f"left out: the schemas of {', '.join(sorted(WITHOUT_SCHEMA))}: they are custom resources")
    print("left out: Kubernetes below 1.30: Helm's engine for Python renders for one version")
    pod.run({kind_of(one): one for one in render(chart, "edge", "limits", {})}, binary)
    print("a pod of the chart becomes ready, denies the sixth call, and shows its dashboard to its operator")
    for name in RECIPES:
        recipe(chart, name)
    print(f"the recipes {', '.join(RECIPES)} name the service that the chart makes")


def packaged(folder):
    """The chart as it is released. Its alerts and dashboard are links, which must become files."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = helm_python.Chart.load(folder).save(scratch)
        with tarfile.open(archive) as packed:
            for name in ("alerts.yml", "dashboard.json"):
                assert packed.getmember(f"spillgate/files/{name}").size > 1000, f"the archive has no {name}"
        return helm_python.Chart.load(archive)


def fits(chart, values):
    try:
        chart.validate_schema(values)
    except helm_python.HelmValuesError:
        return False
    return True


def kind_of(one):
    kind, name = one["kind"], one["metadata"]["name"]
    if kind == "Service" and name.endswith("-admin"):
        return ADMIN
    is_dashboard = kind == "ConfigMap" and name.endswith("-dashboard")
    return "ConfigMap of the dashboard" if is_dashboard else kind


def render(chart, release, namespace, values):
    chart.validate_schema(values)
    rendered = chart.render(values, name=release, namespace=namespace, is_install=True)
    texts = (text for name, text in rendered.items() if name.endswith(".yaml"))
    objects = [one for text in texts for one in yaml.load_all(text, Loader=Strict) if one]
    for one in objects:
        if one["kind"] not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    return objects


class Strict(yaml.SafeLoader):
    """A repeated key is an error, as for the API server and unlike in YAML."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"repeated: {keys}"
        return super().construct_mapping(node, deep)


def recipe(chart, name):
    """Installs the chart as a page of docs/how-to does; the page's addresses must be the service's."""
    page = (ROOT / f"docs/how-to/{name}.md").read_text().replace("\\\n", " ")
    [(release, namespace, flags)] = re.findall(
        r"helm install (\S+) deploy/helm/spillgate --namespace (\S+)(.*)", page
    )
    given = {}
    for path, value in re.findall(r"--set '?([\w.]+)=([^\s']+)", flags):
        inner = given
        *outer, last = path.split(".")
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value[1:-1].split(",") if value.startswith("{") else {"true": True}.get(value, value)
    objects = {kind_of(one): one for one in render(chart, release, namespace, given)}
    service = objects["Service"]
    ports = {port["port"] for port in service["spec"]["ports"]}
    address = f"{service['metadata']['name']}.{namespace}.svc.cluster.local"
    named = set(re.findall(r"[\w-]+\.[\w-]+\.svc\.cluster\.local", page))
    assert named <= {address}, f"{name}.md: {named}, but the service is {address}"
    for service_name, port in re.findall(r"\{ name: ([\w-]*spillgate[\w-]*), port: (\d+) \}", page):
        assert service_name == service["metadata"]["name"], f"{name}.md: {service_name}"
        assert f"namespace: {namespace} }}" in page and int(port) in ports, f"{name}.md: port {port}"
    for port in re.findall(r"port_value: (\d+)|outbound\|(\d+)\|", page):
        assert int("".join(port)) in ports, f"{name}.md: port {port}, but the service has {ports}"
    for block in re.findall(r"```yaml\n(.*?)```", page, re.S) if name == "kubernetes" else []:
        render(chart, release, namespace, yaml.safe_load(block))
    if name != "kubernetes":
        assert given["networkPolicy"]["gatewayNamespaces"], f"{name}.md lets no gateway in"


def agree(objects, values):
    deployment = objects["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    labels = deployment["template"]["metadata"]["labels"]
    selectors = [
        deployment["selector"]["matchLabels"],
        *(objects[kind]["spec"]["selector"] for kind in ("Service", ADMIN) if kind in objects),
        *(objects[kind]["spec"]["selector"]["matchLabels"] for kind in ("PodDisruptionBudget",) if kind in objects),
        *(objects[kind]["spec"]["podSelector"]["matchLabels"] for kind in ("NetworkPolicy",) if kind in objects),
    ]
    for selector in selectors:
        assert selector and selector.items() <= labels.items(), f"{selector} selects none of {labels}"
    expected = values["fullnameOverride"] or "edge-spillgate"
    for kind, one in objects.items():
        name = one["metadata"]["name"]
        suffix = {"ConfigMap of the dashboard": "-dashboard", ADMIN: "-admin"}.get(kind, "")
        assert name == expected + suffix and len(name) < 64, name
    version = yaml.safe_load((ROOT / "deploy/helm/spillgate/Chart.yaml").read_text())["appVersion"]
    assert container["image"] == f"ghcr.io/spillgate/spillgate:{version}", container["image"]

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    on = {name for name, listener in values["listeners"].items() if listener.get("enabled", name == "admin")}
    assert ports.keys() == on, (ports, on)
    served = objects["Service"]["spec"]["ports"] if "Service" in objects else []
    assert {port["targetPort"] for port in served} == on - {"admin"}
    assert len({port["port"] for port in served}) == len(served)
    # Whatever publishes the data listeners, the admin listener stays inside the cluster.
    assert "Service" not in objects or objects["Service"]["spec"]["type"] == values["service"]["type"]
    admin = objects[ADMIN]["spec"]
    assert admin["type"] == "ClusterIP" and [port["targetPort"] for port in admin["ports"]] == ["admin"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] in ports and asked["scheme"] == ("HTTPS" if values["tls"] else "HTTP"), probe
    waits_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert waits_s + STOPS_WITHIN_S < pod["terminationGracePeriodSeconds"]

    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert mounts.keys() == {"config", "secret"} | {mount["name"] for mount in values["extraVolumeMounts"]}
    assert all(mount["readOnly"] for mount in mounts.values())
    [secret] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "secret"]
    held = objects.get("Secret")
    assert secret["secretName"] == (held["metadata"]["name"] if held else values["secret"]["name"])

    environment = {one["name"]: one for one in container["env"]}
    assert len(environment) == len(container["env"]), "a variable is set twice"
    assert all(isinstance(one.get("value", ""), str) for one in environment.values()), "a value that is no text"
    for name, one in environment.items():
        if name.endswith("_FILE"):
            assert one["value"].startswith(mounts["secret"]["mountPath"] + "/"), one
    if held:
        token = environment["SPILLGATE_SERVER__ADMIN_TOKEN_FILE"]["value"].rsplit("/", 1)[1]
        name, role, value = base64.b64decode(held["data"][token]).decode().split(":")
        assert (name, role) == ("admin", "operator") and len(value) >= 32, "a short token"
    # Data callers need a token, or the network policy admits only some.
    guarded = "SPILLGATE_SERVER__DATA_TOKEN_FILE" in environment
    assert guarded != ("SPILLGATE_SERVER__INSECURE" in environment)
    assert ("SPILLGATE_STORE__URL" in environment) == bool(values["store"]["url"] or values["store"]["urlSecret"]["name"])

    assert pod["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    assert objects["ServiceAccount"]["metadata"].get("annotations", {}) == values["serviceAccount"]["annotations"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    secured = container["securityContext"]
    assert secured["readOnlyRootFilesystem"] and not secured["allowPrivilegeEscalation"]
    assert secured["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]

    instances = int(environment["SPILLGATE_STORE__EXPECTED_INSTANCES"]["value"])
    scaler = objects.get("HorizontalPodAutoscaler")
    if scaler:
        assert "replicas" not in deployment, "the autoscaler and the deployment would fight"
        assert scaler["spec"]["scaleTargetRef"]["name"] == objects["Deployment"]["metadata"]["name"]
        assert instances == scaler["spec"]["maxReplicas"]
    else:
        assert instances == deployment["replicas"]
    if "NetworkPolicy" in objects:
        admits(objects["NetworkPolicy"]["spec"], values["networkPolicy"], on)
    if "ServiceMonitor" in objects:
        monitor = objects["ServiceMonitor"]["spec"]
        [endpoint] = monitor["endpoints"]
        assert endpoint["port"] in {port["name"] for port in admin["ports"]}
        assert endpoint.get("scheme") == ("https" if values["tls"] else None)
        assert endpoint.get("tlsConfig", {}) == values["serviceMonitor"]["tlsConfig"]
        assert objects[ADMIN]["metadata"]["labels"][monitor["jobLabel"]] == "spillgate"
        assert monitor["selector"]["matchLabels"].items() <= objects[ADMIN]["metadata"]["labels"].items()
    if "PrometheusRule" in objects:
        rules = objects["PrometheusRule"]
        assert rules["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
        assert values["prometheusRule"]["labels"].items() <= rules["metadata"]["labels"].items()
    if "ConfigMap of the dashboard" in objects:
        dashboard = objects["ConfigMap of the dashboard"]
        shown = json.loads(dashboard["data"]["spillgate.json"])
        assert shown == json.loads((ROOT / "deploy/grafana/spillgate.json").read_text())
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    if "HTTPRoute" in objects:
        assert guarded, "a route without a token"
        route = objects["HTTPRoute"]["spec"]
        [backend] = route["rules"][0]["backendRefs"]
        assert backend["name"] == objects["Service"]["metadata"]["name"]
        assert backend["port"] in {port["port"] for port in served if port["name"] == "http"}
        assert route["parentRefs"] == values["httpRoute"]["parentRefs"] and route["hostnames"] == ["limits.example"]


def admits(rules, policy, on):
    def pods_of(namespaces):
        return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": one}}} for one in namespaces]

    data = (policy["from"] or [{"podSelector": {}}]) + pods_of(policy["gatewayNamespaces"])
    admin = policy["adminFrom"] + pods_of(policy["prometheusNamespaces"])
    listeners = on - {"admin"}
    expected = ([(data, listeners)] if listeners else []) + ([(admin, {"admin"})] if admin else [])
    ingress = rules["ingress"] or []
    # An empty list of peers would admit every pod of the cluster, an empty list of ports all ports.
    assert all(rule["from"] for rule in ingress) and all(rule["ports"] for rule in rules["egress"])
    assert [port["port"] for rule in rules["egress"] for port in rule["ports"]] == [53, 53, *policy["storePorts"]]
    assert [(rule["from"], {port["port"] for port in rule["ports"]}) for rule in ingress] == expected, ingress


main()
