"""Runs the container of a rendered Deployment on this machine, as a kubelet would: files, environment, arguments, probes."""

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def run(objects, binary):
    """The pod becomes ready, allows five of six calls, shows its dashboard, admits its operator, and ends when asked."""
    spec = objects["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    with tempfile.TemporaryDirectory() as scratch:
        redis = f"{scratch}/redis.sock"
        store = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", redis, "--save", "", "--dir", scratch],
            stdout=subprocess.DEVNULL,
        )
        pod = None
        try:
            wait_until(lambda: os.path.exists(redis), 20, "redis-server does not start")
            files = mounted(spec, container, objects, scratch)
            ports = {port["name"]: (port["containerPort"], free_port()) for port in container["ports"]}
            environment = {one["name"]: one["value"] for one in container["env"]}
            environment["SPILLGATE_STORE__URL"] = f"unix://{redis}"
            for number, free in ports.values():
                environment = {
                    name: value.replace(f"0.0.0.0:{number}", f"0.0.0.0:{free}") for name, value in environment.items()
                }
            arguments = container["args"]
            for path, folder in files.items():
                environment = {name: value.replace(path, folder) for name, value in environment.items()}
                arguments = [argument.replace(path, folder) for argument in arguments]
            pod = subprocess.Popen([binary, *arguments], env=environment, stderr=subprocess.DEVNULL)
            ask(pod, container, {name: free for name, (_, free) in ports.items()}, objects["Secret"]["data"])
            pod.send_signal(signal.SIGTERM)
            assert pod.wait(spec["terminationGracePeriodSeconds"]) == 0, "SIGTERM does not end it with 0"
        finally:
            for process in (pod, store):
                if process is not None:
                    process.kill()
                    process.wait()


def mounted(spec, container, objects, scratch):
    """Writes the volumes, and returns their folders by the path at which the container sees them."""
    files = {}
    for mount in container["volumeMounts"]:
        [volume] = [volume for volume in spec["volumes"] if volume["name"] == mount["name"]]
        folder = Path(f"{scratch}{mount['mountPath']}")
        folder.mkdir(parents=True)
        if "configMap" in volume:
            assert volume["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
            for name, text in objects["ConfigMap"]["data"].items():
                (folder / name).write_text(text)
        else:
            for name, data in objects["Secret"]["data"].items():
                (folder / name).write_bytes(base64.b64decode(data))
        files[mount["mountPath"]] = str(folder)
    return files


def ask(pod, container, ports, secret):
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]

        def is_up():
            assert pod.poll() is None, "the container ended"
            try:
                return send(ports[asked["port"]], "GET", asked["path"])[0] == 200
            except OSError:
                return False

        wait_until(is_up, container["startupProbe"]["failureThreshold"], f"the {probe} fails")
    body = json.dumps({"key": "u1", "limit": {"quota": "5/minute"}})
    answers = [json.loads(send(ports["http"], "POST", "/v1/check", body)[1]) for _ in range(6)]
    assert [answer["allowed"] for answer in answers] == [True] * 5 + [False], answers
    assert not any(answer["degraded"] for answer in answers), answers
    status, page = send(ports["admin"], "GET", "/")
    assert status == 200 and b"Spillgate" in page, "there is no dashboard"
    assert b"spillgate_decisions_total" in send(ports["admin"], "GET", "/metrics")[1]
    [token] = secret.values()
    rules = "/admin/v1/rules"
    assert send(ports["admin"], "GET", rules)[0] == 401
    assert send(ports["admin"], "GET", rules, token=base64.b64decode(token).decode().split(":")[2])[0] == 200


def send(port, method, path, body=None, token=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_until(holds, seconds, problem):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, problem
        time.sleep(0.05)
