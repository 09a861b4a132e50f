"""Drives the dashboard of a real server in a real Chromium: under load, with a refused policy, the store killed and back.

Usage: drive.py PATH-OF-THE-SPILLGATE-BINARY [--pictures FOLDER]
With --pictures it then takes the pictures of docs/screenshots, of other instances that are healthy.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pictures
from browser import Browser

RULES = """
[server]
admin_token_file = "{token}"

[[rule]]
name = "login"
match = {{ route = "/login" }}
key = ["ip"]
limits = ["5/minute"]

[[rule]]
name = "api"
key = ["tenant", "user"]
anchor = ["tenant"]
limits = [{{ quota = "20/second", burst = 40 }}, {{ quota = "100000/day", name = "daily", algorithm = "fixed-window" }}]

[[rule]]
name = "tokens"
key = ["tenant"]
limits = [{{ quota = "200000/hour", algorithm = "sliding-window", unit = "tokens" }}]

[[rule]]
name = "signup"
match = {{ route = "/signup" }}
key = ["ip"]
mode = "shadow"
limits = ["3/hour"]
on_outage = "allow"
"""
TOKEN, VIEWER = "a-token-of-thirty-two-characters", "another-token-that-may-only-read"
TENANTS = ["acme", "globex", "initech", "umbrella", "hooli", "stark"]
USERS = ["ann", "bob", "carol", "dave", "erin", "frank", "grace"]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("binary")
    arguments.add_argument("--pictures")
    arguments = arguments.parse_args()
    chromium = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if not chromium:
        print("skipped: there is no chromium; ./check --full installs it")
        return
    with in_browser(chromium, lambda folder: World(arguments.binary, folder)) as (page, world):
        drive(page, world)
    print("dashboard: driven through every page and change, a refused policy, an outage and recovery")
    if arguments.pictures:
        step("pictures, after three and a half minutes of load")
        # Enough tokens that no tenant is denied.
        rules = RULES.replace('"200000/hour"', '"20000000/hour"')
        calm = lambda folder: World(arguments.binary, folder, rules, pictures.TOKENS, pictures.check, "web-1")
        with in_browser(chromium, calm) as (page, world):
            pictures.take(page, world, arguments.pictures)


@contextlib.contextmanager
def in_browser(chromium, make_world):
    """Gives a page of a browser of its own, and a world in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="spillgate-dashboard-") as folder:
        world = make_world(folder)
        browser = None
        try:
            browser = Browser(chromium)
            yield browser.page(), world
        finally:
            if browser:
                browser.close()
            world.close()


class World:
    """A Redis, a server on it, and callers that send what `check` makes."""

    def __init__(self, binary, folder, rules=RULES, tokens=f"drive:operator:{TOKEN}\neve:viewer:{VIEWER}\n", check=None, name=None):
        self.folder, self.binary, self.check = folder, os.path.abspath(binary), check or busy_check
        self.redis_port, self.admin_ports = free_port(), []
        self.start_redis()
        write(f"{folder}/token", tokens)
        write(f"{folder}/rules.toml", rules.format(token=f"{folder}/token"))
        self.server, port, self.admin = self.start_server(name=name)
        self.ports = [port]
        self.stopped = threading.Event()
        self.callers = [threading.Thread(target=self.call, args=(seed,), daemon=True) for seed in range(2)]
        for caller in self.callers:
            caller.start()

    def start_server(self, config="rules.toml", redis_port=0, name=None):
        """Returns an instance on the store, or in memory if `redis_port` is None, and the ports of its HTTP and admin APIs."""
        store = [] if redis_port is None else ["--redis", f"redis://127.0.0.1:{redis_port or self.redis_port}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPILLGATE_")}
        environment |= {"SPILLGATE_SERVER__GRPC__ADDRESS": "off", "SPILLGATE_SERVER__RESP__ADDRESS": "off", "SPILLGATE_STORE__TIMEOUT": "250ms"}
        environment |= {"SPILLGATE_SERVER__NAME": name} if name else {}
        server = subprocess.Popen(
            [self.binary, "serve", "--config", f"{self.folder}/{config}", *store, "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for line in server.stderr:
            if "HTTP on" in line:
                break
        else:
            raise SystemExit("the server does not start")
        threading.Thread(target=server.stderr.read, daemon=True).start()
        http, admin = (int(re.search(rf"{api} on http://127.0.0.1:(\d+)", line)[1]) for api in ("HTTP", "admin"))
        self.admin_ports.append(admin)
        return server, http, admin

    def start_redis(self):
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(self.redis_port), "--save", "", "--dir", self.folder],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.redis_port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("redis-server does not start")

    def call(self, seed):
        """Some hundred checks a second, more by some than by others, in waves, to each port in turn."""
        random_of = random.Random(seed)
        began, turn, connections = time.monotonic(), seed, {}
        while not self.stopped.is_set():
            wave = 1 + 0.6 * ((time.monotonic() - began) % 40 < 15)
            batch = [self.check(random_of) for _ in range(int(20 * wave))]
            turn, port = turn + 1, self.ports[turn % len(self.ports)]
            try:
                if port not in connections:
                    connections[port] = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connections[port].request("POST", "/v1/check/batch", json.dumps(batch))
                connections[port].getresponse().read()
            except (OSError, http.client.HTTPException):
                connections.pop(port, None)
            time.sleep(0.1)

    def close(self):
        self.stopped.set()
        for caller in self.callers:
            caller.join(10)
        for process in (self.server, self.redis):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def busy_check(random_of):
    """Some subjects send far more than their limits, so that every list and chart of the dashboard has something to show."""
    heavy = lambda values: values[min(int(random_of.expovariate(0.6)), len(values) - 1)]
    kind = random_of.random()
    address = f"203.0.113.{min(int(random_of.expovariate(0.05)), 250)}"
    if kind < 0.12:
        return {"attributes": {"ip": address, "route": "/login"}}
    if kind < 0.16:
        return {"attributes": {"ip": address, "route": "/signup"}}
    tenant = heavy(TENANTS)
    cost = {"requests": 1, "tokens": random_of.randrange(1, 900)} if kind < 0.4 else 1
    return {"attributes": {"tenant": tenant, "user": heavy(USERS)}, "cost": cost}


class Road:
    """A port that leads to another one, but only once it is open."""

    def __init__(self, to):
        self.port, self.to, self.listener = free_port(), to, None

    def open(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    @staticmethod
    def carry(one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                end.close()

    def close(self):
        if self.listener:
            self.listener.close()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def drive(page, world):
    deny_cyberdyne(world)
    page.size(1440, 900)
    page.open(f"http://127.0.0.1:{world.admin}/")

    step("the token: requested, a wrong one is refused, the right one works")
    page.until("document.getElementById('ask').open")
    page.write("#token input", "not-the-token-at-all")
    page.key("Enter")
    page.until("document.getElementById('token-result').textContent.includes('token is wrong')")
    page.write("#token input", TOKEN)
    page.key("Enter")
    page.until("!document.getElementById('ask').open && document.getElementById('status').textContent === 'healthy'")
    # A shadow rule in the file is worth a note, and no alarm.
    page.until("document.querySelector('#conditions').textContent.includes('signup is in shadow')")

    step("a viewer: every page without its controls, with the reason, and another token instead")
    block = {"rule": "api", "subject": {"tenant": "hooli"}, "limits": ["block"]}
    call(world, "PUT", "/admin/v1/overrides", block)
    page.say(f"sessionStorage.setItem('spillgate-token', {json.dumps(VIEWER)})")
    reload(page, "location.reload()")
    for hash in ("#/rule?name=api", "#/overrides", "#/subject?rule=api&attr.tenant=hooli&attr.user=ann"):
        go(page, hash)
        page.until("document.getElementById('status').textContent === 'healthy'")
        page.until("document.querySelector('main').innerText.includes('Your token may only read')")
        page.until("document.querySelector('.states li') || document.querySelector('tbody')?.textContent.includes('tenant=hooli')")
        visible = page.say("[...document.querySelectorAll('main button, main input, main select')].filter(one => one.checkVisibility()).map(one => one.textContent || one.name)")
        assert not set(visible) & {"Enforce", "Off", "Reset all subjects", "Remove", "Block", "Set limits", "Refund", "Reset", "limits"}, visible
        faults = lasting_faults(page)
        assert not faults, f"{hash} of a viewer: {faults}"
    reload(page, "document.querySelector('.for-viewers button').click()")
    page.until("document.getElementById('ask').open")
    # The whole line of the file is a token too.
    page.write("#token input", f"drive:operator:{TOKEN}")
    page.key("Enter")
    page.until("document.querySelector('.actions > button')?.checkVisibility() && !document.querySelector('.for-viewers').checkVisibility()")
    call(world, "DELETE", "/admin/v1/overrides?rule=api&attr.tenant=hooli")
    go(page, "#/")

    step("overview: figures and charts move under load, and lists have links")
    page.until("Number.parseFloat(document.querySelector('.figures b').textContent) > 0")
    for place in ("path.area.allowed", "path.line.p99", "path.area.limit-exceeded", "path.area.answered", ".top a", ".facts dd", "table .pill.good"):
        page.until(f"document.querySelector({json.dumps(place)})")
    page.until("document.querySelector('.figures').textContent.includes('of this instance')")

    step("the first screen of a laptop, and two of a phone, have denials by rule and the most denied subjects; notes are folded")
    for wide, tall in ((1366, 768), (390, 2 * 844)):
        page.size(wide, tall, touch=wide < 500)
        for heading in ("Requests per second", "Denials by rule", "Most denials in the last minute"):
            bottom = page.say(f"document.querySelector('section[aria-label={json.dumps(heading)}] :is(.legend, li:nth-child(3))').getBoundingClientRect().bottom")
            assert bottom <= tall, f"{heading} ends at {bottom} px of {tall}"
    page.size(1440, 900)
    assert page.say("document.querySelector('#conditions details').open") is False
    page.until("document.querySelector('.top .count').textContent && document.querySelector('section[aria-label^=\"Most denials\"] .count').textContent.startsWith('about ')")

    step("series of zeros are hidden, and the time before the start is shaded")
    page.until("document.querySelector('rect.before')")
    legends = page.say("[...document.querySelectorAll('.legend li')].filter(one => one.checkVisibility()).map(one => one.textContent.replace(/[\\d.]+.*/, ''))")
    assert "limit exceeded" in legends and not set(legends) & {"overloaded", "failed", "outage policy"}, legends

    step("every range is loaded; the cursor shows one time on all charts, by pointer and by keyboard")
    for name in ("3m", "1h", "24h", "15m"):
        choose(page, name)
        page.until("document.querySelector('path.area.allowed')")
    page.say("document.querySelector('.chart svg').focus()")
    page.key("ArrowLeft")
    page.until("document.querySelectorAll('.chart .time').length === document.querySelectorAll('.chart').length")
    assert page.say("new Set([...document.querySelectorAll('.chart .time')].map(one => one.textContent)).size") == 1
    page.key("Escape")
    page.until("!document.querySelector('.chart .time')")
    page.say("""(svg => { const box = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', { clientX: box.right - 12, clientY: box.top + 40 })); })(document.querySelector('.chart svg'))""")
    page.until("document.querySelector('.chart .time') && /^\\d+ \\w+ \\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('.readout').textContent)")

    step("a view that is held has a link, which shows the same later; Back to now follows again")
    page.say("document.querySelector('.chart svg').focus()")
    for key in ("ArrowLeft", "ArrowLeft", "Enter"):
        page.key(key)
    page.until("/^#.*range=15m&until=[^&]*Z&at=[^&]*Z$/.test(location.hash)")
    seen = "[document.querySelector('.readout').textContent, document.querySelector('.legend').textContent].join()"
    page.until("document.querySelector('.range button').textContent === 'Back to now'")
    link, shown = page.say("location.href"), page.say(seen)
    time.sleep(3)
    page.open("about:blank")
    page.open(link)
    page.until("document.querySelector('.chart .time')")
    page.until(f"{seen} === {json.dumps(shown)}")
    page.click(".range button")
    page.until("location.hash === '#/?range=15m' && document.querySelector('.range button').textContent === 'Hold'")

    step("search: / and Ctrl-K focus it, and Enter opens a rule, an override by a part of its value or by an address in it, a denied subject")
    block = {"rule": "login", "subject": {"ip": "198.51.100.0/24"}, "limits": ["block"]}
    call(world, "PUT", "/admin/v1/overrides", block)
    for keys, text, hash in (
        (("/", "Slash", 0), "sign", "#/rule?name=signup"), (("k", "KeyK", 2), "51.100", "#/subject?rule=login&attr.ip=198.51.100.0%2F24"),
        (("/", "Slash", 0), "tenant=acme tokens", "#/subject?rule=tokens&attr.tenant=acme"),
        (("/", "Slash", 0), "198.51.100.9", "#/subject?rule=login&attr.ip=198.51.100.0%2F24"),
    ):
        page.say("document.activeElement.blur()")
        page.key(keys[0], keys[1], modifiers=keys[2])
        page.until("document.activeElement.id === 'search'")
        page.type(text)
        page.until("document.querySelector('#found [aria-selected=true]')")
        page.key("Enter")
        page.until(f"location.hash.startsWith({json.dumps(hash)}) && document.getElementById('found').hidden")
        page.until("document.activeElement.id === 'main'")

    step("a network that is blocked: the page of an address in it names it, and removes it")
    go(page, "#/subject?rule=login&attr.ip=198.51.100.7")
    page.until("document.querySelector('.head .pill.bad')?.textContent === 'blocked'")
    page.until("document.querySelector('.head .states').textContent.includes('covers every address in 198.51.100.0/24, not only ip=198.51.100.7')")
    # The attribute that the rule matches on is filled in.
    page.until("document.querySelector('.explained .decision.bad')?.textContent.includes('Denied by login/0, which blocks')")
    assert page.say("document.querySelector('input[name=attributes]').value") == "route=/login ip=198.51.100.7"
    page.click(".head .states button")
    page.until("document.getElementById('confirm').open")
    assert page.say("document.getElementById('confirm-title').textContent") == "Remove the block of ip=198.51.100.0/24 in login?"
    assert "not only ip=198.51.100.7" in page.say("document.getElementById('confirm-text').textContent")
    page.click("#confirm-yes")
    page.until("!document.querySelector('.head .pill.bad') && document.querySelector('.explained .decision.good')")
    undo(page)
    page.until("document.querySelector('.head .pill.bad') && document.querySelector('.explained .decision.bad')")
    press(page, ".head .states button")
    page.until("!document.querySelector('.head .pill.bad')")

    step("rules: searched, filtered, sorted")
    go(page, "#/rules")
    page.until("document.querySelectorAll('tbody tr').length === 4")
    page.write("input[name=search]", "TENANT 20/second")
    page.until("document.querySelectorAll('tbody tr').length === 1 && document.querySelector('tbody a').textContent === 'api'")
    page.write("input[name=search]", "nothing-like-it")
    page.until("document.querySelector('td.empty')?.textContent.includes('No rule fits')")
    page.say("(field => { field.value = ''; field.form.dispatchEvent(new Event('input')); })(document.querySelector('input[name=search]'))")
    page.say("(field => { field.value = 'shadow'; field.form.dispatchEvent(new Event('input')); })(document.querySelector('select[name=mode]'))")
    page.until("document.querySelectorAll('tbody tr').length === 1 && document.querySelector('tbody a').textContent === 'signup'")
    page.say("(field => { field.value = ''; field.form.dispatchEvent(new Event('input')); })(document.querySelector('select[name=mode]'))")
    page.click("button.sort")
    page.until("document.querySelector('tbody a').textContent === 'api' && document.querySelector('th').ariaSort === 'ascending'")
    page.click("button.sort")
    page.until("document.querySelector('tbody a').textContent === 'tokens'")

    step("the kill switch on the page of a rule: asked about, cancelled, set with a reason, undone")
    go(page, "#/rule?name=login")
    page.until("document.querySelector('.actions button[value=enforce]')?.ariaPressed === 'true'")
    for place in ("path.area.denied", "path.area.limit-exceeded", ".top a", ".limits li"):
        page.until(f"document.querySelector({json.dumps(place)})")
    press(page, ".actions button[value=off]", "no")
    assert ask(world, "ip=203.0.113.1", "route=/login")["rules"][0]["matched"]
    page.click(".actions button[value=off]")
    page.until("document.getElementById('confirm').open")
    page.write("#confirm input[name=reason]", "incident 4711")
    page.key("Enter")
    page.until("!document.getElementById('confirm').open")
    page.until("document.querySelector('.actions button[value=off]').ariaPressed === 'true'")
    page.until("document.getElementById('status').textContent === 'rule off'")
    page.until("document.getElementById('conditions').textContent.includes('login is off and limits no request, set by an operator')")
    page.until("document.querySelector('.title small')?.textContent === 'set by drive: incident 4711'")
    page.until("document.querySelector('.events .change')?.textContent.includes('drive set login to off (incident 4711)')")
    page.until("document.querySelector('.chart .event.change')")
    assert not ask(world, "ip=203.0.113.1", "route=/login")["rules"][0]["matched"]
    page.click("#changes .notice.good button")
    page.until("document.querySelector('#changes').textContent.includes('Undone: Set login to off.')")
    page.until("document.querySelector('.actions button[value=enforce]').ariaPressed === 'true'")
    page.until("document.querySelector('.events').textContent.includes('drive set login back to the mode of the policy file (undo of the change before)')")
    page.until("document.getElementById('status').textContent === 'healthy'")
    press(page, ".actions button[value=shadow]")
    page.until("document.getElementById('status').textContent === 'rule in shadow'")
    press(page, ".actions button[value=enforce]")
    page.until("document.getElementById('status').textContent === 'healthy'")

    step("a reset of a rule: the focus is on Cancel, and the name must be typed")
    page.click(".actions > button:last-child")
    page.until("document.getElementById('confirm').open")
    assert page.say("document.activeElement.id") == "confirm-no"
    assert "cannot be undone" in page.say("document.getElementById('confirm-text').textContent")
    page.write("#confirm input[name=name]", "logi")
    page.key("Enter")
    assert page.say("document.getElementById('confirm').open && document.getElementById('confirm-yes').disabled")
    page.write("#confirm input[name=name]", "login")
    page.key("Enter")
    page.until("document.querySelector('#changes .notice.good')?.textContent.includes('All counters of login are reset')")

    step("overrides: set for a subject and for every subject, in force, removed, undone, and one that ends by itself")
    go(page, "#/overrides")
    page.until("document.querySelectorAll('form.override option').length >= 3")
    page.until("document.querySelector('td.empty')?.textContent.includes('None is set')")
    page.say("(field => { field.value = 'api'; field.dispatchEvent(new Event('change')); })(document.querySelector('select[name=rule]'))")
    page.write("input[name=subject]", "tenant=globex")
    page.write("input[name=limits]", "block")
    press(page, "form.override button")
    page.until("document.querySelector('tbody').textContent.includes('tenant=globex')")
    page.until("document.querySelector('tbody').textContent.includes('by drive')")
    assert ask(world, "tenant=globex", "user=zoe")["reason"] == "blocked"
    press(page, "tbody button")
    page.until("document.querySelector('td.empty')")
    assert ask(world, "tenant=globex", "user=zoe")["allowed"] is True
    page.click("#changes .notice.good button")
    page.until("document.querySelector('tbody').textContent.includes('tenant=globex')")
    assert ask(world, "tenant=globex", "user=zoe")["reason"] == "blocked"
    press(page, "tbody button")
    page.until("document.querySelector('td.empty')")
    page.say("document.querySelector('input[name=subject]').value = ''")
    press(page, "form.override button")
    page.until("document.querySelector('tbody').textContent.includes('every subject')")
    assert ask(world, "tenant=stark", "user=zoe")["reason"] == "blocked"
    press(page, "tbody button")
    page.until("document.querySelector('td.empty')")
    # The shortest time in the form is a quarter of an hour; the test adds one of seconds.
    page.say("document.querySelector('select[name=for]').add(new Option('10 seconds', '10', false, true))")
    page.write("input[name=subject]", "tenant=hooli")
    page.write("input[name=limits]", "1/hour")
    press(page, "form.override button")
    page.until("document.querySelector('tbody')?.textContent.includes('tenant=hooli')")
    page.until("document.querySelector('td.empty')")
    page.write("input[name=limits]", "5/fortnight")
    page.click("form.override button")
    page.until("document.getElementById('confirm-problem').textContent.includes('fortnight')")
    assert page.say("document.getElementById('confirm-yes').disabled && document.activeElement.id") == "confirm-no"
    page.key("Escape")
    page.until("!document.getElementById('confirm').open")

    step("a reason of 480 letters fits the page, and Undo overwrites no newer change")
    block = {"rule": "api", "subject": {"tenant": "globex"}, "limits": ["block"], "reason": "x" * 480}
    call(world, "PUT", "/admin/v1/overrides", block)
    page.until("document.querySelector('tbody').textContent.includes('xxx')")
    assert page.say("[...document.querySelectorAll('.scroll')].every(one => one.scrollWidth <= one.clientWidth)")
    press(page, "tbody button")
    page.until("document.querySelector('td.empty')")
    call(world, "PUT", "/admin/v1/overrides", {**block, "limits": ["1/hour"]})
    page.click("#changes .notice.good button")
    page.until("document.querySelector('#changes').textContent.includes('another change came first, so nothing was done: there is 1/hour by drive')")
    call(world, "DELETE", "/admin/v1/overrides?rule=api&attr.tenant=globex")
    page.until("document.querySelector('td.empty')")

    step("explain: decision, sentence, what a raise would change, and a mistake")
    go(page, "#/subject")
    page.write("input[name=attributes]", "tenant=acme user=ann")
    page.key("Enter")
    page.until("document.querySelector('.explained')?.textContent.includes('api/0 (20/second burst 40)')")
    page.until("document.querySelector('.explained').textContent.includes('At 40/second burst 80')")
    page.write("input[name=attributes]", "nonsense")
    page.key("Enter")
    page.until("document.querySelector('.explained .result.bad')?.textContent.includes('write name=value')")
    page.write("input[name=attributes]", "route=/login user=ann")
    page.key("Enter")
    page.until("document.querySelector('.explained .decision')?.textContent.startsWith('No rule matches')")
    assert page.say("document.querySelector('.explained .decision').classList.length") == 1

    step("the page of a subject: states, block, undo, other limits, refund, reset")
    go(page, "#/subject?rule=tokens&attr.tenant=stark")
    page.until("document.querySelector('.states ~ .states')?.textContent.includes('tokens left')")
    page.until("document.querySelector('.explained .decision')")
    press(page, ".actions > button")
    page.until("document.querySelector('.head .pill.bad')?.textContent === 'blocked'")
    assert ask(world, "tenant=stark")["reason"] == "blocked"
    page.click("#changes .notice.good button")
    page.until("!document.querySelector('.head .states button')")
    page.until("document.querySelector('input[name=limits]').value.startsWith('400000/')")
    page.click("form.limits button")
    page.until("document.getElementById('confirm').open")
    effect = page.say("document.getElementById('confirm-facts').textContent").replace("\u2009", "")
    assert "200000/hour, capacity 200000 tokens" in effect and "400000/hour, capacity 400000 tokens" in effect, effect
    page.click("#confirm-yes")
    page.until("document.querySelector('.states ~ .states').textContent.replaceAll('\u2009', '').includes('of 400000')")
    press(page, ".head .states button")
    page.until("!document.querySelector('.head .states button')")
    go(page, "#/subject?rule=api&attr.tenant=stark&attr.user=ann")
    page.until("document.querySelector('input[name=limits]')?.value === '40/second burst 80, 200000/day'")
    press(page, "form.limits button")
    page.until("document.querySelector('.head .states b')?.textContent === 'tenant=stark user=ann: 40/second burst 80, 200000/day'")
    press(page, ".head .states button")
    page.until("!document.querySelector('.head .states button')")
    go(page, "#/subject?rule=tokens&attr.tenant=stark")
    page.until("document.querySelector('select[name=unit]')?.value === 'tokens'")
    page.write("input[name=amount]", "0")
    page.click("form.refund button")
    page.until("document.querySelector('.head').textContent.includes('expected a whole number')")
    # It stays while the state is read again.
    time.sleep(2.5)
    assert "expected a whole number" in page.say("document.querySelector('.head').textContent")
    page.write("input[name=amount]", "100")
    press(page, "form.refund button")
    page.until("document.querySelector('#changes .notice.good').textContent.includes('100 tokens are refunded')")
    page.click(".actions > button:last-child")
    page.until("document.getElementById('confirm').open")
    assert "cannot be undone" in page.say("document.getElementById('confirm-text').textContent")
    page.click("#confirm-yes")
    page.until("document.querySelector('#changes .notice.good').textContent.includes('are reset')")

    step("undone: a refund of more than was used, and other limits for an address whose network was blocked")
    subject = {"rule": "tokens", "subject": {"tenant": "wayne"}}
    call(world, "POST", "/admin/v1/state", subject | {"charge": {"tokens": 3}})
    go(page, "#/subject?rule=tokens&attr.tenant=wayne")
    page.until("document.querySelector('.head')?.textContent.includes('tenant=wayne')")
    page.until("document.querySelector('select[name=unit]')?.value === 'tokens'")
    page.write("input[name=amount]", "10")
    press(page, "form.refund button")
    page.until("document.querySelector('#changes .notice.good')?.textContent.includes('10 tokens are refunded to tenant=wayne')")
    assert call(world, "GET", "/admin/v1/state?rule=tokens&attr.tenant=wayne")["limits"][0]["remaining"] == 200_000
    undo(page)
    assert call(world, "GET", "/admin/v1/state?rule=tokens&attr.tenant=wayne")["limits"][0]["remaining"] == 199_997
    call(world, "PUT", "/admin/v1/overrides", {"rule": "login", "subject": {"ip": "2001:db8::7"}, "limits": ["block"]})
    go(page, "#/overrides")
    page.until("document.querySelector('tbody')?.textContent.includes('2001:db8::')")
    page.write("input[name=search]", "2001:db9::7")
    page.until("document.querySelector('main').textContent.includes('No override fits the search.')")
    page.write("input[name=search]", "2001:db8::7")
    page.until("document.querySelectorAll('tbody tr').length === 1 && document.querySelector('tbody').textContent.includes('2001:db8::/64')")
    go(page, "#/subject?rule=login&attr.ip=2001:db8::7")
    page.until("document.querySelector('input[name=limits]')?.value === '10/minute'")
    press(page, "form.limits button")
    page.until("document.querySelector('#changes .notice.good')?.textContent.includes('limited to 10/minute')")
    assert ask(world, "ip=2001:db8::7", "route=/login")["allowed"] is True
    undo(page)
    assert ask(world, "ip=2001:db8::7", "route=/login")["reason"] == "blocked"
    call(world, "DELETE", "/admin/v1/overrides?rule=login&attr.ip=2001:db8::7")

    # What follows needs two minutes of history.
    step("by keyboard alone, readable in every size and light")
    for hash, names in (
        ("#/", ("Overview", "Fleet", "find", "range", "svg")), ("#/rules", ("search", "mode", "api")), ("#/overrides", ("rule", "subject", "limits", "for")),
        ("#/rule?name=api", ("enforce", "shadow", "off", "lasting")), ("#/subject?rule=api&attr.tenant=acme&attr.user=ann", ("attributes", "cost", "Block", "amount")),
    ):
        readable(page, hash, names)

    step("a refused policy file: critical, with the reason, until it is fixed")
    rules = f"{world.folder}/rules.toml"
    text = open(rules).read()
    write(rules, text.replace("5/minute", "5/fortnight"))
    page.until("document.getElementById('status').textContent === 'policy refused'")
    page.until("document.getElementById('conditions').textContent.includes('fortnight')")
    write(rules, text)
    page.until("document.getElementById('status').textContent === 'healthy'")

    step("the fleet: its figures are labelled, and without those of a killed instance; its history has no shorter range than 15 minutes")
    go(page, "#/?range=3m")
    others = [world.start_server()[0] for _ in range(2)]
    assert page.say("document.querySelector('.range input[value=instance]').checked")
    page.click(".range input[value=fleet]")
    page.until("/^#.*of=fleet/.test(location.hash) && location.hash.includes('range=15m') && !document.querySelector('.range input[value=\"3m\"]')")
    page.until("document.querySelector('.figures').textContent.includes('last minute of all 3 instances')")
    assert page.say("document.querySelector('.figures').getAttribute('aria-label')") == "The fleet, last minute"
    for expected, other in zip(("2 of 3", "1 of 3"), others):
        other.kill()
        other.wait()
        page.until(f"document.querySelector('.figures').textContent.includes('last minute of {expected} instances')")

    step("the history of the fleet: a point each minute, denials by rule, and a rule's own page")
    page.click(".range input[value='48h']")
    page.until("document.querySelector('path.area.allowed') && document.querySelector('path.line.p99') && document.querySelector('section[aria-label=\"Denials by rule\"] .count')", 150)
    page.until("document.querySelector('text.before')?.textContent === 'not recorded'")
    assert not page.say("document.querySelector('section[aria-label=\"Calls to the store per second\"]').checkVisibility()")
    readable(page, "#/?range=1h&of=fleet", ("of", "range", "svg"))
    go(page, "#/rule?name=api&range=1h&of=fleet")
    page.until("document.querySelector('path.area.limit-exceeded') && document.querySelector('path.area.allowed')")
    page.click(".range input[value=instance]")
    page.until("document.querySelector('text.before')?.textContent === 'before the start'")

    denials(page, world)

    fleet_page(page, world)

    step("the store killed: critical, a kill switch all the same, and back with a lost state")
    world.redis.kill()
    world.redis.wait()
    page.until("document.getElementById('status').textContent === 'degraded'")
    page.until("document.getElementById('conditions').textContent.includes('ecisions are made without')")
    page.click(".range input[value=fleet]")
    page.until("document.querySelector('.figures').textContent.includes('unknown until the store answers')")
    page.until("document.querySelector('main > .note').textContent.startsWith('The history of the fleet is unknown: ')")
    page.click(".range input[value=instance]")
    page.until("document.querySelector('path.area.fallback') && document.querySelector('.events .degraded')")
    go(page, "#/rule?name=login")
    press(page, ".actions button[value=off]")
    page.until("document.querySelector('#changes .notice.good')?.textContent.includes('saved when the store is back')")
    page.until("document.querySelector('.actions button[value=off]').ariaPressed === 'true'")
    assert not ask(world, "ip=203.0.113.1", "route=/login")["rules"][0]["matched"]
    world.start_redis()
    page.until("document.querySelector('.events .state-loss')")
    page.until("document.getElementById('conditions').textContent.includes('lost its data')")
    press(page, ".actions button[value=enforce]")
    go(page, "#/")
    page.until("document.querySelector('.events .recovered')")

    step("the server stopped for a while: no connection, and back")
    world.server.send_signal(signal.SIGSTOP)
    page.until("document.getElementById('status').textContent === 'no connection'")
    world.server.send_signal(signal.SIGCONT)
    page.until("document.getElementById('status').textContent !== 'no connection' && document.getElementById('banner').hidden")
    # The curve has a gap there, and no diagonal.
    page.until("document.querySelector('path.area.allowed').getAttribute('d').split('M').length > 2")

    errors, asked = page.complaints()
    assert not errors, errors
    own = tuple(f"http://127.0.0.1:{port}/" for port in world.admin_ports)
    foreign = [url for url in asked if not url.startswith((*own, "about:", "data:"))]
    assert not foreign, foreign


def deny_cyberdyne(world):
    """Has a subject allowed three times and then denied three times. Its denials are recorded a minute or two later."""
    connection = http.client.HTTPConnection("127.0.0.1", world.ports[0], timeout=30)
    for cost in (1, 1, 1, 41, 41, 41):
        check = {"attributes": {"tenant": "cyberdyne", "user": "ann"}, "cost": cost}
        connection.request("POST", "/v1/check", json.dumps(check))
        answer = json.loads(connection.getresponse().read())
        assert answer["allowed"] is (cost == 1), answer


def denials(page, world):
    step("denials: a subject of two minutes ago is found in the header, although it is not busy now")
    path, deadline = "/admin/v1/denials?rule=api&attr.tenant=cyberdyne&attr.user=ann", time.monotonic() + 180
    while not call(world, "GET", path)["entries"]:
        assert time.monotonic() < deadline, "no denial was recorded"
        time.sleep(1)
    top = "/admin/v1/top?rule=api&n=100"
    while "cyberdyne" in json.dumps(call(world, "GET", top)):
        assert time.monotonic() < deadline, "it is still among the busiest"
        time.sleep(1)
    page.write("#search", "CYBERD")
    page.until("document.getElementById('found').textContent.includes('Searching the denials of 48 hours')")
    page.until("document.querySelector('#found [role=option]')?.textContent === 'tenant=cyberdyne user=anndenied 3 times by api'")
    page.write("#search", "tenant=cyberd")
    page.until("document.querySelector('#found [role=option]~ [role=option]')?.textContent.startsWith('tenant=cyberdyne')")
    page.write("#search", "user=cyberd")
    page.until("document.getElementById('found').textContent.includes('No denial of such a subject was recorded')")
    assert page.say("document.getElementById('found-note').textContent.startsWith('No denial')")

    step("denials: an answer that comes late replaces no newer one, and an incomplete one is asked for again")
    page.say("""window.unchanged = window.fetch, window.incomplete = 1, window.fetch = async (url, init) => {
        if (/like=cyberdyne$/.test(url)) await new Promise(done => setTimeout(done, 2500));
        const response = await window.unchanged(url, init);
        if (!/like=cyb$/.test(url) || window.incomplete-- < 1) return response;
        return new Response(JSON.stringify({ ...await response.json(), entries: [], complete: false, unread_hours: 3 }));
    }""")
    page.write("#search", "cyberdyne")
    time.sleep(0.6)
    page.write("#search", "cyberdine")
    page.until("document.getElementById('found').textContent.includes('No denial of such a subject was recorded')")
    time.sleep(2.5)
    assert not page.say("document.querySelector('#found [role=option]')")
    page.write("#search", "cyb")
    page.until("document.getElementById('found').textContent.includes('3 hours of denials not read yet')")
    page.until("document.querySelector('#found [role=option]')?.textContent.startsWith('tenant=cyberdyne')")
    for wide, tall in ((390, 844), (1440, 900)):
        page.size(wide, tall, touch=wide < 500)
        # The list lies over the page, but no part of it beside the screen.
        box = page.say("(box => [box.left, innerWidth - box.right, innerWidth - document.documentElement.scrollWidth])(document.getElementById('found').getBoundingClientRect())")
        assert min(box) >= 0, f"search at {wide} px: {box}"
    page.say("window.fetch = window.unchanged")
    page.key("Enter")
    page.until("location.hash === '#/subject?rule=api&attr.tenant=cyberdyne&attr.user=ann'")

    step("denials: the page of the subject has the hour, both counts and a link to the charts of the minute")
    page.until("document.title.startsWith('tenant=cyberdyne') && document.querySelector('.denials article')")
    assert page.say("document.querySelector('.denials h3').textContent") == "api, 20/second burst 40cost-exceeds-limit"
    assert page.say("document.querySelectorAll('.strip i').length") == 48
    line = page.say("document.querySelector('.denials li').textContent")
    assert re.search(r"\d\d:003 denied, (hardly any|about \d+) allowed\d\d:\d\d$", line), line
    minute = page.say("document.querySelector('.denials li a').textContent")
    readable(page, "#/subject?rule=api&attr.tenant=cyberdyne&attr.user=ann", ("attributes", minute))
    page.click(".denials li a")
    page.until("/^#\\/rule\\?name=api&range=1h&of=fleet&until=[^&]*Z&at=[^&]*Z$/.test(location.hash) && document.querySelector('.chart .time')")
    go(page, "#/?range=15m&of=instance")

    step("denials: a subject without a record is not called allowed, and several subjects have no record of their own")
    go(page, "#/subject?rule=api&attr.tenant=wayne&attr.user=ann")
    page.until("document.querySelector('.denials')?.textContent.includes('Not recorded: ')")
    go(page, "#/subject?rule=api&attr.tenant=wayne")
    page.until("document.querySelector('.denials')?.textContent.includes('names several subjects')")


def fleet_page(page, world):
    step("the page of the fleet: the one with another policy first, in words; from an instance that does not reach the store, and later does")
    write(f"{world.folder}/other.toml", open(f"{world.folder}/rules.toml").read().replace("5/minute", "9/minute"))
    road = Road(world.redis_port)
    others = [world.start_server(name="web-2"), world.start_server("other.toml", name="web-3"), world.start_server(redis_port=road.port, name="web-4")]
    try:
        assert page.say("document.getElementById('fleet').checkVisibility()")
        page.click("#fleet")
        first = "document.querySelector('main tbody tr')"
        page.until(f"{first}?.textContent.includes('web-3') && {first}.textContent.includes('policy #2')")
        page.until("document.querySelectorAll('main tbody tr').length === 3 && document.querySelector('.figures').textContent.includes('1 unlike most')")
        assert page.say("[...document.querySelectorAll('main tbody tr')].slice(1).every(row => row.textContent.includes('like most') && row.textContent.includes('#1'))")
        page.until("Number.parseFloat(document.querySelector('.figures b').textContent) > 0 && document.querySelector('tbody').textContent.includes('answered')")
        shown = page.say("document.querySelector('main .note').textContent")
        page.until(f"document.querySelector('main .note').textContent !== {json.dumps(shown)}", 5)
        page.open(f"http://127.0.0.1:{others[2][2]}/#/fleet")
        enter_token(page)
        page.until("document.querySelector('main [role=alert]').textContent.includes('The instances are unknown: ')")
        road.open()
        page.until("document.querySelectorAll('main tbody tr').length === 4 && !document.querySelector('main [role=alert]').checkVisibility()")
        page.until("document.querySelector('main .note').textContent.startsWith('web-4 answered at ')")
        page.until(f"{first}.textContent.includes('web-3')")
        readable(page, "#/fleet", ("Instance", "Compared", "Changes"))
    finally:
        for other, *_ in others:
            other.kill()
            other.wait()
        road.close()

    step("in memory: no page of a fleet; with denials off: how to turn them on")
    write(f"{world.folder}/off.toml", open(f"{world.folder}/rules.toml").read() + '\n[store]\ndenials = "off"\n')
    alone = world.start_server("off.toml", redis_port=None)
    try:
        page.open(f"http://127.0.0.1:{alone[2]}/")
        enter_token(page)
        page.until("document.querySelector('.figures').textContent.includes('shares its limits with no other')")
        assert not page.say("document.getElementById('fleet').checkVisibility()")
        go(page, "#/subject?rule=login&attr.ip=203.0.113.1")
        page.until("document.querySelector('.denials')?.textContent.includes('To turn it on, set store.denials')")
    finally:
        alone[0].kill()
        alone[0].wait()
    page.open(f"http://127.0.0.1:{world.admin}/#/")
    page.until("document.getElementById('status').textContent === 'healthy'")


def enter_token(page):
    page.until("document.getElementById('ask').open")
    page.write("#token input", TOKEN)
    page.key("Enter")
    page.until("!document.getElementById('ask').open")


def readable(page, hash, names):
    """Checks that Tab reaches all names of a page, and that nothing of it is cut off or hard to read in any size and light."""
    go(page, hash)
    page.until("document.querySelector('main').children.length && document.title !== 'Spillgate'")
    time.sleep(1)
    page.say("document.activeElement.blur(), scrollTo(0, 0)")
    reached = set()
    for _ in range(90):
        page.key("Tab")
        reached.add(page.say("document.activeElement.name || document.activeElement.value || (document.activeElement.tagName === 'svg' ? 'svg' : document.activeElement.textContent)"))
    for name in names:
        assert name in reached, f"{hash}: {name} is not reached by Tab: {reached}"
    for wide, tall in ((390, 844), (768, 1024), (1440, 900), (1920, 1080)):
        for dark in (False, True):
            page.size(wide, tall, dark=dark, touch=wide < 500)
            faults = lasting_faults(page)
            assert not faults, f"{hash} at {wide} px, {'dark' if dark else 'light'}: {faults}"
    page.size(1440, 900)


def choose(page, name):
    """Chooses a range, and waits until it is shown: until then the charts have the points of the one before."""
    page.say("window.chosenAt = performance.now()")
    page.click(f".range input[value='{name}']")
    loaded = f"one.name.includes('range={name}') && one.startTime >= window.chosenAt && one.responseEnd > 0"
    page.until(f"performance.getEntriesByType('resource').some(one => {loaded})")
    time.sleep(0.3)


def go(page, hash):
    """Opens a page of the dashboard."""
    page.say(f"location.hash = {json.dumps(hash)}")
    page.until("document.querySelector('main > section')")


def reload(page, act):
    """Waits until the page is loaded anew by an expression that reloads it."""
    page.say(f"window.isOld = true, {act}")
    page.until("!window.isOld && document.readyState === 'complete'")


def press(page, selector, answer="yes"):
    """Presses a button that changes something, and answers the question about it."""
    page.click(selector)
    page.until("document.getElementById('confirm').open")
    page.click(f"#confirm button[value={answer}]")
    page.until("!document.getElementById('confirm').open")


def undo(page):
    """Undoes the newest change, and waits for the result: an older change may have been undone before."""
    page.say("document.querySelectorAll('#changes .notice:not(:first-child)').forEach(older => older.remove())")
    page.click("#changes .notice.good button")
    page.until("document.querySelector('#changes .notice.good')?.textContent.includes('Undone: ')")


def write(file, text):
    with open(file, "w") as to:
        to.write(text)


def lasting_faults(page):
    """Returns the faults of the page that last, and are not only there while it changes."""
    for _ in range(8):
        time.sleep(0.3)
        faults = page.say(FAULTS)
        if not faults:
            break
    return faults


def ask(world, *attributes):
    """Returns the explanation of the decision on a request with these attributes."""
    return call(world, "GET", "/admin/v1/explain?" + "&".join(f"attr.{attribute}" for attribute in attributes))


def call(world, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", world.admin, timeout=30)
    connection.request(method, path, body and json.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, (method, path, answer.status, text)
    return json.loads(text)


def step(name):
    print(f"  {name}", flush=True)


# Text that is cut off or lies over other text, sideways scrolling, and contrast below AA.
FAULTS = """(() => {
  const faults = [];
  if (document.documentElement.scrollWidth > innerWidth) faults.push(`wider than the screen: ${document.documentElement.scrollWidth}`);
  const parse = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return {r, g, b, a}; };
  const over = (top, under) => ({ r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1 });
  const light = ({r, g, b}) => [r, g, b].map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      layers.push(parse(getComputedStyle(at).backgroundColor));
      const fill = at.querySelector?.(':scope > .fill');
      if (fill && at !== element) layers.push({ ...parse(getComputedStyle(fill).backgroundColor) });
    }
    return layers.reverse().reduce((under, top) => over(top, under), {r: 255, g: 255, b: 255, a: 1});
  };
  const boxes = [];
  for (const element of document.querySelectorAll('main *, header *, #banner, #conditions *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    const field = element.matches('input, select, button');
    if (!own && !field || !element.checkVisibility({ opacityProperty: true }) || element.closest('.hidden, .skip, thead, option')) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || element.namespaceURI.endsWith('svg')) continue;
    const said = `${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`;
    const style = getComputedStyle(element);
    const pair = [light(over(parse(style.color), behind(element))), light(behind(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${said}`);
    if (!element.closest('.scroll') && (box.left < -1 || box.right > innerWidth + 1)) faults.push(`off the screen: ${said}`);
    if (!field && element.scrollWidth > element.clientWidth + 1 && style.display !== 'inline') faults.push(`cut off: ${said}`);
    boxes.push([element, box, said]);
  }
  for (const [a, boxA, saidA] of boxes) for (const [b, boxB, saidB] of boxes) {
    if (a === b || a.contains(b) || b.contains(a)) continue;
    const wide = Math.min(boxA.right, boxB.right) - Math.max(boxA.left, boxB.left);
    const tall = Math.min(boxA.bottom, boxB.bottom) - Math.max(boxA.top, boxB.top);
    if (wide > 2 && tall > 4) faults.push(`overlap: ${saidA} / ${saidB}`);
  }
  return faults.slice(0, 5);
})()"""


if __name__ == "__main__":
    sys.exit(main())
