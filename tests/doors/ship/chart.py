"""Checks the chart in every rendering: its values fit their schema, every object is well formed, references between
objects agree, and no container has more rights than it needs.

Usage: chart.py CHART RENDERER..., where RENDERER is a command that takes a chart, a release, a namespace and
perhaps a file of values, and prints the objects.
"""

import json
import subprocess
import sys
import tempfile

import jsonschema
import yaml

# Values that a user may set, and the kinds of objects that they make.
ALWAYS = {"ConfigMap", "Deployment", "Service", "ServiceAccount"}
CASES = [
    ({}, ALWAYS | {"Secret", "PodDisruptionBudget", "NetworkPolicy"}),
    (
        {
            "autoscaling": {"enabled": True, "maxReplicas": 5},
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "secret": {"name": "mine", "dataToken": "data", "keySecret": "key"},
            "store": {"url": "", "urlSecret": {"name": "redis", "key": "url"}},
            "doors": {"resp": {"enabled": True}, "grpc": {"enabled": False}},
            "networkPolicy": {
                "from": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}],
                "adminFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
            },
            "podLabels": {"team": "edge"},
            "podAnnotations": {"a/b": "c"},
            "imagePullSecrets": [{"name": "registry"}],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "edge", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "priorityClassName": "high",
            "extraEnv": [{"name": "SPILLGATE_TELEMETRY__LOG__FORMAT", "value": "json"}],
        },
        ALWAYS | {"PodDisruptionBudget", "NetworkPolicy", "HorizontalPodAutoscaler", "ServiceMonitor"},
    ),
    (
        {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}, "store": {"url": ""}},
        ALWAYS | {"Secret"},
    ),
]
REFUSED = [
    {"replica": 3},
    {"replicas": 0},
    {"doors": {"http": {"enabled": True, "port": 80800}}},
    {"store": {"url": "http://redis"}},
    {"service": {"type": "Ingress"}},
    {"secret": {"dataToken": "data"}},
    {"image": {"pullPolicy": "Sometimes"}},
]


def main():
    chart, renderer = sys.argv[1], sys.argv[2:]
    values = yaml.safe_load(open(f"{chart}/values.yaml"))
    schema = json.load(open(f"{chart}/values.schema.json"))
    jsonschema.Draft7Validator.check_schema(schema)
    fits = jsonschema.Draft7Validator(schema).is_valid
    for case, kinds in CASES:
        assert fits(merged(values, case)), f"the schema refuses {case}"
        objects = render(renderer, chart, case)
        found = [one["kind"] for one in objects]
        assert sorted(found) == sorted(kinds), f"{case}: {found}"
        agree({one["kind"]: one for one in objects}, merged(values, case))
    for case in REFUSED:
        assert not fits(merged(values, case)), f"the schema accepts {case}"
    print(f"the chart renders in {len(CASES)} ways, and its schema refuses {len(REFUSED)} others")


def render(renderer, chart, values):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        command = [*renderer, chart, "edge", "limits", file.name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # The API server refuses a key that is there twice, and YAML does not.
    return [one for one in yaml.load_all(output, Loader=Strict) if one]


class Strict(yaml.SafeLoader):
    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}"
        return super().construct_mapping(node, deep)


def agree(objects, values):
    deployment = objects["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    labels = deployment["template"]["metadata"]["labels"]
    selectors = [
        deployment["selector"]["matchLabels"],
        objects["Service"]["spec"]["selector"],
        *(objects[kind]["spec"]["selector"]["matchLabels"] for kind in ("PodDisruptionBudget",) if kind in objects),
        *(objects[kind]["spec"]["podSelector"]["matchLabels"] for kind in ("NetworkPolicy",) if kind in objects),
    ]
    for selector in selectors:
        assert selector and selector.items() <= labels.items(), f"{selector} selects none of {labels}"
    for one in objects.values():
        name = one["metadata"]["name"]
        assert name == "edge-spillgate" and len(name) < 64, name

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    on = {name for name, listener in values["doors"].items() if listener.get("enabled", name == "admin")}
    assert ports.keys() == on, (ports, on)
    served = objects["Service"]["spec"]["ports"]
    assert {port["targetPort"] for port in served} == on and len({port["port"] for port in served}) == len(served)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports, probe

    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert all(mount["readOnly"] for mount in mounts.values())
    [secret] = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    held = objects.get("Secret")
    assert secret["secretName"] == (held["metadata"]["name"] if held else values["secret"]["name"])

    environment = {one["name"]: one for one in container["env"]}
    assert len(environment) == len(container["env"]), "a variable is there twice"
    assert all(isinstance(one.get("value", ""), str) for one in environment.values()), "a value is no text"
    for name, one in environment.items():
        if name.endswith("_FILE"):
            assert one["value"].startswith(mounts["secret"]["mountPath"] + "/"), one
    if held:
        token = environment["SPILLGATE_SERVER__ADMIN_TOKEN_FILE"]["value"].rsplit("/", 1)[1]
        assert len(held["data"][token]) >= 32, "a short token"
    # Either callers present a secret, or the network keeps other callers out.
    guarded = "SPILLGATE_SERVER__DATA_TOKEN_FILE" in environment
    assert guarded != ("SPILLGATE_SERVER__INSECURE" in environment)
    assert ("SPILLGATE_STORE__URL" in environment) == bool(values["store"]["url"] or values["store"]["urlSecret"]["name"])

    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    secured = container["securityContext"]
    assert secured["readOnlyRootFilesystem"] and not secured["allowPrivilegeEscalation"]
    assert secured["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]

    nodes = int(environment["SPILLGATE_STORE__EXPECTED_INSTANCES"]["value"])
    scaler = objects.get("HorizontalPodAutoscaler")
    if scaler:
        assert "replicas" not in deployment, "the autoscaler and the deployment would fight"
        assert scaler["spec"]["scaleTargetRef"]["name"] == objects["Deployment"]["metadata"]["name"]
        assert nodes == scaler["spec"]["maxReplicas"]
    else:
        assert nodes == deployment["replicas"]
    policy = objects.get("NetworkPolicy")
    if policy:
        first = policy["spec"]["ingress"][0]
        assert first["from"], "an empty list of peers would admit every peer"
        assert {port["port"] for port in first["ports"]} == on - {"admin"}
    monitor = objects.get("ServiceMonitor")
    if monitor:
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in served}


def merged(into, new):
    out = dict(into)
    for name, value in new.items():
        both = isinstance(value, dict) and isinstance(out.get(name), dict)
        out[name] = merged(out[name], value) if both else value
    return out


main()
