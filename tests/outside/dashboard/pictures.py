"""The pictures of docs/screenshots: three healthy instances under load, in which operators changed two limits.

They need three and a half minutes of load, so that the charts of three minutes are full.
"""

import datetime
import http.client
import json
import os
import time

ANN, BOB = "a-token-of-thirty-two-characters", "another-token-of-an-operator-bob"
TOKENS = f"ann:operator:{ANN}\nbob:operator:{BOB}\n"
TENANTS = {"acme": 5, "globex": 4, "initech": 3, "umbrella": 3, "hooli": 2, "stark": 2}
USERS = {"ann": 4, "bob": 3, "carol": 3, "dave": 2, "erin": 2, "frank": 1, "grace": 1}


def check(random_of):
    """Most requests have room. One address guesses passwords, and two users send somewhat more than their limit."""
    one_of = lambda weighted: random_of.choices(list(weighted), weighted.values())[0]
    kind, address = random_of.random(), f"203.0.113.{random_of.randrange(1, 250)}"
    if kind < 0.01:
        return {"attributes": {"ip": "203.0.113.66", "route": "/login"}}
    if kind < 0.03:
        return {"attributes": {"ip": address, "route": "/login"}}
    if kind < 0.04:
        return {"attributes": {"ip": address, "route": "/signup"}}
    cost = {"requests": 1, "tokens": random_of.randrange(1, 900)} if kind < 0.25 else 1
    return {"attributes": {"tenant": one_of(TENANTS), "user": one_of(USERS)}, "cost": cost}


def take(page, world, folder):
    os.makedirs(folder, exist_ok=True)
    others = [world.start_server(name=f"web-{number}") for number in (2, 3)]
    try:
        world.ports += [port for _, port, _ in others]
        time.sleep(110)
        override(world, ANN, "api", {"tenant": "acme"}, "50/second", "ticket 88")
        time.sleep(30)
        override(world, BOB, "login", {"ip": "203.0.113.66"}, "block", "guesses passwords")
        time.sleep(70)
        page.open(f"http://127.0.0.1:{world.admin}/")
        page.until("document.getElementById('ask').open")
        page.write("#token input", ANN)
        page.key("Enter")
        page.until("!document.getElementById('ask').open")
        charts = "range=3m&of=instance"
        picture(page, folder, "", f"#/?{charts}")
        picture(page, folder, "-rule", f"#/rule?name=api&{charts}")
        picture(page, folder, "-subject", "#/subject?rule=api&attr.tenant=globex&attr.user=ann")
        # Instances with two policies are a condition after a minute, and only a mark in the list before.
        with open(f"{world.folder}/other.toml", "w") as file:
            file.write(open(f"{world.folder}/rules.toml").read().replace("5/minute", "9/minute"))
        others.append(world.start_server("other.toml", name="web-4"))
        world.ports.append(others[-1][1])
        time.sleep(20)
        picture(page, folder, "-fleet", "#/fleet")
    finally:
        for other, *_ in others:
            other.kill()
            other.wait()


def override(world, token, rule, subject, limit, reason):
    ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    body = {"rule": rule, "subject": subject, "limits": [limit], "reason": reason, "expires_at": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
    connection = http.client.HTTPConnection("127.0.0.1", world.admin, timeout=30)
    connection.request("PUT", "/admin/v1/overrides", json.dumps(body), {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()


def picture(page, folder, page_name, hash):
    """Takes the pictures of a page of a healthy service on a desktop and a phone, in the light and in the dark."""
    page.say(f"location.hash = {json.dumps(hash)}")
    page.until("document.querySelector('main > section')")
    for name, wide, tall, touch in (("desktop", 1440, 900, False), ("phone", 390, 844, True)):
        for light in ("light", "dark"):
            page.size(wide, tall, dark=light == "dark", touch=touch)
            page.say("document.activeElement.blur(), scrollTo(0, 0)")
            time.sleep(2.5)
            page.until("document.getElementById('status').textContent === 'healthy'")
            page.picture(f"{folder}/dashboard{page_name}-{name}-{light}.png")
    page.size(1440, 900)
