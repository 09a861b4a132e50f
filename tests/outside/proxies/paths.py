"""Tries every spelling of a limited path through real nginx and real application servers.

nginx asks Spillgate as deploy/proxies/nginx/fail-closed.conf says. It passes the path on as it came, decoded
(`proxy_pass` with a URI), or serves a file itself (`root`). Once the limit of a path is used up, no spelling of it may
reach its handler.

Usage: paths.py PATH-OF-THE-SPILLGATE-BINARY [SERVER=COMMAND]...
Each server is a program that takes its port as the last argument; paths.sh builds them.
"""

import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

RECIPE = pathlib.Path(__file__).resolve().parents[3] / "deploy/proxies/nginx/fail-closed.conf"
RULES = """
[server]
trusted_proxies = ["127.0.0.1"]
[server.auth]
original = "x-original"
# Express matches paths in any case, and most routers ignore a final slash.
[attribute.path]
type = "path"
ignore_case = true
ignore_trailing_slash = true
""" + "".join(
    f"""
[[rule]]
name = "{name}"
match = {{ path = {path} }}
key = ["ip"]
limits = ["2/hour"]
"""
    for name, path in [
        ("login", '"/login"'),
        ("deep", '"/a/login"'),
        ("colon", '"/gpt:go"'),
        ("under", '["/under", "/under/*"]'),
    ]
)
# Behind a slash: what a client may write for "login".
SPELLINGS = """
login %6cogin %6C%6Fgin LOGIN /login //login ./login x/../login x/%2e%2e/login .%2e/login ../../login
%2flogin %2Flogin .%2flogin .%2Flogin %2e%2flogin x%2f..%2flogin x%2F%2E%2E%2Flogin x/..%2flogin x%2f../login ..%2flogin
x%2fy/../../login %2f%2f%2flogin login/ login/. login/x/.. login%2f login%2f. login%2fx%2f.. login?x login%3fx login%23x
%252flogin %25%32%66login x%252f..%252flogin \\login %5clogin x\\..\\login x%5c..%5clogin
login;x=1 ;x/login x;y/../login %c0%aflogin %e0%80%aflogin %ef%bc%8flogin log%69n%00 login%20 login%09 login. login%2e
login%0a login%0A login%0a%0a login/%0a login%0a/ login%2f%0a %0alogin login%0d login%0a?x x/../login%0a x%2f..%2flogin%0a
x#/../login x#/..%2flogin x#%2f../login #/../login login# login#x login#/x x#?/../login x#/../login?y x#/../login%0a
q%2fb/../login q%2fb/..%2flogin q%2fb/../x/..%2flogin q%2fb/../x%2f..%2flogin q%2fb/../login%0a
""".split()
# Routers that do not resolve dots take all of these for paths below a prefix.
UNDER = """
under/x under/../z under/%2e%2e/z under/./../z under%2f../z under/..%2fz under/x%2f..%2f..%2fz under/%2e%2e%2fz
//under/../z x/../under/../z %75nder/../z under//../z under/x/../../z under/. under/.. under/../../under/../z
""".split()
TARGETS = [
    *[(path, "/" + spelling) for path in ["/login"] for spelling in SPELLINGS],
    *[("/a/login", "/a/" + spelling) for spelling in SPELLINGS],
    ("/a/login", "/a%2flogin"),
    ("/a/login", "/a%2fx/../login"),
    ("/a/login", "/%61%2flogin"),
    ("/a/login", "/x%2f../a/login"),
    *[("/under/x", "/" + spelling) for spelling in UNDER],
    *[("/gpt:go", "/" + spelling) for spelling in ["gpt%3Ago", "gpt%3ago", "%67pt%3A%67o", "gpt%3Ago%0a", "x%2f..%2fgpt%3ago"]],
]
# The table in docs/explain/security.md says what to do about these.
KNOWN = {"new URL()": "\\"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(port, target):
    """Sends a target byte by byte as it is, and returns status and body."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
        stream.sendall(f"GET {target} HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := stream.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.. (\d+)", head)
    return int(status[1]) if status else 0, body


def started(command, port):
    process = subprocess.Popen([str(word) for word in command])
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return process
        except OSError:
            assert process.poll() is None, f"{command} ended"
            time.sleep(0.05)
    process.kill()
    sys.exit(f"{command} does not listen on port {port}")


def nginx(folder, content, port, spillgate):
    recipe = RECIPE.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    recipe = recipe.replace("127.0.0.1:8080", f"127.0.0.1:{spillgate}")
    assert "proxy_pass http://127.0.0.1:3000;" in recipe
    recipe = recipe.replace("proxy_pass http://127.0.0.1:3000;", content)
    kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr crit; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{recipe}\n}}"
    )
    # Its files must be readable for the user that nginx chooses if it is started by root.
    return ["nginx", "-e", "stderr", "-p", folder, "-c", main]


def evasions(binary, content, targets):
    """Returns the spellings that reach a handler whose limit is used up, and how many reach one at all."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        (folder / "rules.toml").write_text(RULES)
        ports = spillgate, admin, port = free_port(), free_port(), free_port()
        serve = [binary, "serve", "--config", folder / "rules.toml", "--grpc", "off", "--resp", "off"]
        serve += ["--http", f"127.0.0.1:{spillgate}", "--admin", f"127.0.0.1:{admin}"]
        processes = [started(serve, spillgate)]
        try:
            processes.append(started(nginx(folder, content, port, spillgate), port))
            for path in ["/login", "/a/login", "/under/x", "/gpt:go"]:
                first = [get(port, path) for _ in range(3)]
                assert [status for status, _ in first] == [200, 200, 429], (content, path, first, ports)
            return [target for target in targets if get(port, target)[1] == b"login"]
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def main():
    binary, servers = sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])
    failed = False
    with tempfile.TemporaryDirectory() as name:
        files = pathlib.Path(name)
        files.chmod(0o755)
        for folder in ["a", "under"]:
            (files / folder).mkdir(mode=0o755)
        for file in [files / "login", files / "a/login", files / "under/x", files / "gpt:go"]:
            file.write_text("login")
            file.chmod(0o644)
        # Its regular expressions let `$` match before a final newline.
        regex = f"location ~ ^/(login|a/login|under/x|gpt:go)$ {{ root {files}; try_files /$1 =404; }} root {files};"
        targets = [target for _, target in TARGETS]
        trials = {"nginx, root": (f"root {files};", None, targets), "nginx, regex": (regex, None, targets)}
        for server, command in servers.items():
            port = free_port()
            process = started([*command.split(), port], port)
            tried = [target for target in targets if KNOWN.get(server, "\n") not in target]
            for kind, slash in [("raw", ""), ("with URI", "/")]:
                trials[f"{server}, {kind}"] = (f"proxy_pass http://127.0.0.1:{port}{slash};", process, tried)
        try:
            for trial, (content, _, tried) in trials.items():
                found = evasions(binary, content, tried)
                failed |= bool(found)
                print(f"{trial}: {len(found)} of {len(tried)} spellings reach a handler without a limit {found}")
        finally:
            for process in {process for _, process, _ in trials.values() if process}:
                process.kill()
    sys.exit(failed)


main()
