"""Drives the dashboard of a real server in a real Chromium: under load, with the store killed and back.

Usage: drive.py PATH-OF-THE-SPILLGATE-BINARY [--pictures FOLDER]
With --pictures it also takes the pictures of docs/screenshots, which needs a minute and a half of load.
"""

import argparse
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
TOKEN = "a-token-of-thirty-two-characters"
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
    with tempfile.TemporaryDirectory(prefix="spillgate-dashboard-") as folder:
        world = World(arguments.binary, folder)
        browser = None
        try:
            browser = Browser(chromium)
            page = browser.page()
            drive(page, world)
            if arguments.pictures:
                pictures(page, world, arguments.pictures)
        finally:
            if browser:
                browser.close()
            world.close()
    print("dashboard: driven through token, load, explain, override, kill switch, outage and recovery")


class World:
    """A Redis, a server on it, and callers."""

    def __init__(self, binary, folder):
        self.folder, self.binary = folder, os.path.abspath(binary)
        self.redis_port = free_port()
        self.start_redis()
        for name, text in (("token", f"drive:operator:{TOKEN}"), ("rules.toml", RULES.format(token=f"{folder}/token"))):
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPILLGATE_")}
        environment |= {"SPILLGATE_SERVER__GRPC": "off", "SPILLGATE_SERVER__RESP": "off", "SPILLGATE_STORE__TIMEOUT": "250ms"}
        self.server = subprocess.Popen(
            [self.binary, "serve", "--config", f"{folder}/rules.toml", "--redis", f"redis://127.0.0.1:{self.redis_port}",
             "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for line in self.server.stderr:
            if "HTTP on" in line:
                break
        else:
            raise SystemExit("the server does not start")
        self.port, self.admin = (int(re.search(rf"{door} on http://127.0.0.1:(\d+)", line)[1]) for door in ("HTTP", "admin"))
        threading.Thread(target=self.server.stderr.read, daemon=True).start()
        self.stopped = threading.Event()
        self.callers = [threading.Thread(target=self.call, args=(seed,), daemon=True) for seed in range(2)]
        for caller in self.callers:
            caller.start()

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
        """Some hundred checks a second, more by some than by others, in waves."""
        random_of = random.Random(seed)
        began, connection = time.monotonic(), None
        while not self.stopped.is_set():
            wave = 1 + 0.6 * ((time.monotonic() - began) % 40 < 15)
            batch = [self.check(random_of) for _ in range(int(20 * wave))]
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                connection.request("POST", "/v1/check/batch", json.dumps(batch))
                connection.getresponse().read()
            except OSError:
                connection = None
            time.sleep(0.1)

    @staticmethod
    def check(random_of):
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


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def drive(page, world):
    page.size(1280, 900)
    page.open(f"http://127.0.0.1:{world.admin}/")

    step("the token: requested, a wrong one is refused, the right one works")
    page.until("document.getElementById('ask').open")
    page.write("#token input", "not-the-token-at-all")
    page.key("Enter")
    page.until("document.getElementById('token-said').textContent.includes('token is wrong')")
    page.write("#token input", TOKEN)
    page.key("Enter")
    page.until("!document.getElementById('ask').open && document.getElementById('status').textContent === 'healthy'")

    step("live: figures move under load, and every panel has something to show")
    page.until("Number.parseFloat(document.getElementById('now-rate').textContent) > 0")
    decided = "[...document.querySelectorAll('#rules tbody tr')].find(row => row.dataset.rule === 'api').cells[2].textContent"
    page.until(f"Number.parseFloat({decided}) > 0")
    for place in ("#top-denied .who", "#top-consumers .who", "#shards .pill", "#facts dd", "#chart-decisions path.allowed", "#chart-latency path.p99"):
        page.until(f"document.querySelector({json.dumps(place)})")
    page.until("document.querySelector('#top-denied')?.textContent.includes('203.0.113.')")

    step("explain: decision, sentence, and what a raise would change")
    page.write("#explain [name=attributes]", "tenant=acme user=ann")
    page.key("Enter")
    page.until("document.querySelector('#explained .decision')")
    page.until("document.getElementById('explained').textContent.includes('api/0 (20/1s burst 40)')")
    page.until("document.getElementById('explained').textContent.includes('At 40/1s burst 80')")
    page.write("#explain [name=attributes]", "nonsense")
    page.key("Enter")
    page.until("document.querySelector('#explained .said.bad')?.textContent.includes('write name=value')")

    step("an override: set, in force, taken back, and one that ends by itself")
    page.say("document.querySelector('#override [name=rule]').value = 'api'")
    page.write("#override [name=subject]", "tenant=globex")
    page.write("#override [name=limits]", "block")
    page.click("#override button")
    page.until("document.querySelector('#overrides')?.textContent.includes('tenant=globex')")
    assert ask(world, "tenant=globex", "user=zoe")["reason"] == "blocked"
    page.click("#overrides tbody button")
    page.until("document.querySelector('#overrides')?.textContent.includes('None is set')")
    assert ask(world, "tenant=globex", "user=zoe")["allowed"] is True
    # The shortest time in the form is a quarter of an hour; the test adds one of seconds.
    page.say("document.querySelector('#override [name=for]').add(new Option('10 seconds', '10', false, true))")
    page.write("#override [name=subject]", "tenant=hooli")
    page.write("#override [name=limits]", "1/hour")
    page.click("#override button")
    page.until("document.querySelector('#overrides')?.textContent.includes('tenant=hooli')")
    page.until("document.querySelector('#overrides')?.textContent.includes('None is set')")
    page.write("#override [name=limits]", "5/fortnight")
    page.click("#override button")
    page.until("document.querySelector('#override-said.bad')?.textContent.includes('fortnight')")

    step("the kill switch: asked about, put on, taken back")
    mode = "document.querySelector('#rules select[data-rule=login]')"
    choose = "{0}.value = '{1}', {0}.dispatchEvent(new Event('change', {{bubbles: true}}))"
    page.say(choose.format(mode, "off"))
    page.until("document.getElementById('confirm').open")
    page.click("#confirm .quiet")
    page.until(f"{mode}.value === 'enforce'")
    # The second request is sent before the dialog's close event: the answer belongs to the request on the page.
    page.say(choose.format(mode, "off"))
    page.until("document.getElementById('confirm').open")
    page.say("document.querySelector('#confirm .quiet').click(), " + choose.format(mode, "off"))
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until(f"{mode}.value === 'off' && {mode}.className === 'set'")
    page.until("document.querySelector('#rules-said.good')?.textContent.includes('everywhere')")
    assert not ask(world, "ip=203.0.113.1", "route=/login")["rules"][0]["matched"]
    page.say(choose.format(mode, "enforce"))
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until(f"{mode}.value === 'enforce' && {mode}.className === ''")

    step("the store killed: a banner, and back")
    world.redis.kill()
    world.redis.wait()
    page.until("document.getElementById('status').textContent === 'degraded'")
    page.until("document.getElementById('banner').textContent.includes('unavailable') && !document.getElementById('banner').hidden")
    page.until("document.querySelector('#chart-sources path.fallback')")
    page.say(choose.format(mode, "off"))
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until("document.querySelector('#rules-said.good')?.textContent.includes('not yet on')")
    trouble = page.say("document.getElementById('rules-said').textContent")
    page.until(f"{mode}.value === 'off'")
    facts = page.say("document.getElementById('facts').textContent")
    page.until(f"document.getElementById('facts').textContent !== {json.dumps(facts)}")
    assert page.say("document.getElementById('rules-said').textContent") == trouble, trouble
    world.start_redis()
    page.until("document.getElementById('status').textContent === 'healthy' && document.getElementById('banner').hidden")
    page.say(choose.format(mode, "enforce"))
    page.until("document.getElementById('confirm').open")
    page.click("#confirm-yes")
    page.until(f"{mode}.value === 'enforce'")

    step("the server stopped for a while: no connection, and back")
    world.server.send_signal(signal.SIGSTOP)
    page.until("document.getElementById('status').textContent === 'no connection'")
    world.server.send_signal(signal.SIGCONT)
    page.until("document.getElementById('status').textContent === 'healthy'")

    step("by keyboard alone, readable in every size and light")
    page.write("#explain [name=attributes]", "tenant=acme user=ann")
    page.key("Enter")
    page.until("document.querySelector('#explained .decision')")
    page.say("document.body.focus(), scrollTo(0, 0)")
    reached = set()
    for _ in range(60):
        page.key("Tab")
        reached.add(page.say("document.activeElement.name || document.activeElement.dataset.rule || document.activeElement.id || document.activeElement.tagName"))
    for name in ("login", "subject", "limits", "attributes", "cost"):
        assert name in reached, f"{name} is not reached by Tab: {reached}"
    for wide, tall in ((360, 780), (768, 1024), (1280, 900), (1920, 1080)):
        for dark in (False, True):
            page.size(wide, tall, dark=dark, touch=wide < 500)
            faults = lasting_faults(page)
            assert not faults, f"at {wide} px, {'dark' if dark else 'light'}: {faults}"

    errors, asked = page.complaints()
    assert not errors, errors
    foreign = [url for url in asked if not url.startswith((f"http://127.0.0.1:{world.admin}/", "about:", "data:"))]
    assert not foreign, foreign


def lasting_faults(page):
    """Returns the faults of the page that last, and are not only there while it changes."""
    for _ in range(8):
        time.sleep(0.3)
        faults = page.say(FAULTS)
        if not faults:
            break
    return faults


def ask(world, *attributes):
    connection = http.client.HTTPConnection("127.0.0.1", world.admin, timeout=30)
    query = "&".join(f"attr.{attribute}" for attribute in attributes)
    connection.request("GET", f"/admin/v1/explain?{query}", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    return json.loads(answer.read())


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
  for (const element of document.querySelectorAll('main *, header *, #banner')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    const field = element.matches('input, select, button');
    if (!own && !field || !element.checkVisibility() || element.closest('.hidden, .skip, thead, option')) continue;
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


def pictures(page, world, folder):
    step("pictures, after a minute and a half of load")
    os.makedirs(folder, exist_ok=True)
    page.size(1280, 900)
    page.say("document.querySelector('#override [name=for]').value = '3600'")
    for subject, limits in (("tenant=acme", "50/second"), ("tenant=umbrella user=dave", "block")):
        page.write("#override [name=subject]", subject)
        page.write("#override [name=limits]", limits)
        page.click("#override button")
        page.until(f"document.querySelector('#overrides')?.textContent.includes({json.dumps(subject)})")
    page.say("[...document.querySelectorAll('#override option')].find(one => one.value === '10')?.remove()")
    page.say("document.querySelector('#override').reset(), document.querySelectorAll('.said').forEach(said => said.textContent = '')")
    time.sleep(90)
    page.write("#explain [name=attributes]", "tenant=globex user=ann")
    page.key("Enter")
    page.until("document.getElementById('explained').textContent.includes('tokens/0')")
    page.say("document.activeElement.blur(), scrollTo(0, 0)")
    for name, wide, tall, touch in (("desktop", 1280, 900, False), ("phone", 360, 780, True)):
        for light in ("light", "dark"):
            page.size(wide, tall, dark=light == "dark", touch=touch)
            time.sleep(1.5)
            page.picture(f"{folder}/dashboard-{name}-{light}.png")


if __name__ == "__main__":
    sys.exit(main())
