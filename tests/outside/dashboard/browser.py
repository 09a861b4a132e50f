"""A browser without a window, driven over its debugging protocol: standard library only."""

import base64
import collections
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import zlib


class Browser:
    """A Chromium of its own, with a profile that is removed at the end."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="spillgate-chromium-")
        self.process = subprocess.Popen(
            [
                program, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.profile}",
                "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                "--disable-background-networking", "--hide-scrollbars", "about:blank",
            ],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )
        for line in self.process.stderr:
            found = re.search(r"ws://([^:/]+):(\d+)(/\S+)", line)
            if found:
                break
        else:
            raise SystemExit("the browser does not start")
        self.host, self.port, path = found[1], int(found[2]), found[3]
        self.whole = Socket(self.host, self.port, path)

    def page(self):
        target = self.whole.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        return Page(Socket(self.host, self.port, f"/devtools/page/{target}"))

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self.profile, ignore_errors=True)


class Page:
    def __init__(self, to):
        self.to = to
        for domain in ("Page", "Runtime", "Network", "Log"):
            to.call(f"{domain}.enable")

    def size(self, wide, tall, dark=False, touch=False):
        self.to.call("Emulation.setDeviceMetricsOverride", {
            "width": wide, "height": tall, "deviceScaleFactor": 1, "mobile": touch,
        })
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.to.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, url):
        self.to.call("Page.navigate", {"url": url})
        self.until("document.readyState === 'complete'")

    def say(self, expression):
        """Returns the value of an expression in the page."""
        answer = self.to.call("Runtime.evaluate", {
            "expression": expression, "returnByValue": True, "awaitPromise": True, "userGesture": True,
        })
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.say(f"Boolean({expression})"):
                    return
            except AssertionError as error:
                # The page is being replaced by the next one.
                if "navigated or closed" not in str(error):
                    raise
            time.sleep(0.1)
        raise AssertionError(f"never: {expression}\n{self.say('document.body.innerText')[:3000]}")

    def key(self, key, code=None, text=None, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key, "code": code or key, "modifiers": modifiers}
            number = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowDown": 40, " ": 32}.get(key)
            if number:
                event["windowsVirtualKeyCode"] = number
            if kind == "keyDown" and (text or key == "Enter"):
                event["text"] = text or "\r"
            self.to.call("Input.dispatchKeyEvent", event)

    def type(self, text):
        self.to.call("Input.insertText", {"text": text})

    def write(self, selector, text):
        """Types text as a user would, after removing the old text."""
        quoted = json.dumps(selector)
        self.say(f"document.querySelector({quoted}).focus(), document.querySelector({quoted}).select?.()")
        self.type(text)

    def click(self, selector):
        self.say(f"document.querySelector({json.dumps(selector)}).click()")

    def picture(self, file, whole=True):
        shot = self.to.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        with open(file, "wb") as out:
            out.write(with_palette(base64.b64decode(shot["data"])))

    def complaints(self):
        """Returns the errors on the page's console, and the addresses that it requested."""
        errors, asked = [], set()
        for event in self.to.events:
            name, params = event["method"], event["params"]
            if name == "Runtime.exceptionThrown":
                errors.append(params["exceptionDetails"].get("exception", {}).get("description", str(params)))
            if name == "Log.entryAdded" and params["entry"]["source"] in ("security", "javascript"):
                errors.append(params["entry"]["text"])
            if name == "Network.requestWillBeSent":
                asked.add(params["request"]["url"])
        return errors, asked


def with_palette(png):
    """Returns the picture in its 256 most frequent colours, a third of the size."""
    chunks, at = [], 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at:at + 4])
        chunks.append((png[at + 4:at + 8], png[at + 8:at + 8 + length]))
        at += length + 12
    wide, tall, _, colour = struct.unpack(">IIBB", dict(chunks)[b"IHDR"][:10])
    step = {2: 3, 6: 4}[colour]
    raw = zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT"))
    rows, before = [], bytearray(wide * step)
    for row in range(tall):
        start = row * (wide * step + 1)
        before = unfiltered(raw[start], bytearray(raw[start + 1:start + 1 + wide * step]), before, step)
        rows.append([bytes(before[i:i + 3]) for i in range(0, len(before), step)])
    counts = collections.Counter(pixel for row in rows for pixel in row)
    palette = [pixel for pixel, _ in counts.most_common(256)]
    near = {pixel: place for place, pixel in enumerate(palette)}
    for pixel in counts:
        if pixel not in near:
            near[pixel] = min(range(len(palette)), key=lambda place: sum((a - b) ** 2 for a, b in zip(pixel, palette[place])))
    body = b"".join(b"\0" + bytes(near[pixel] for pixel in row) for row in rows)
    head = struct.pack(">IIBBBBB", wide, tall, 8, 3, 0, 0, 0)
    written = [(b"IHDR", head), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(body, 9)), (b"IEND", b"")]
    framed = [struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in written]
    return png[:8] + b"".join(framed)


def unfiltered(kind, row, above, step):
    for i in range(len(row)):
        left = row[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        if kind == 1:
            row[i] = (row[i] + left) & 255
        elif kind == 2:
            row[i] = (row[i] + above[i]) & 255
        elif kind == 3:
            row[i] = (row[i] + (left + above[i]) // 2) & 255
        elif kind == 4:
            guess = left + above[i] - corner
            row[i] = (row[i] + min((left, above[i], corner), key=lambda near: abs(guess - near))) & 255
    return row


class Socket:
    """A websocket client with the part of RFC 6455 that the debugging protocol uses."""

    def __init__(self, host, port, path):
        self.stream = socket.create_connection((host, port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall((
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.stream.recv(1)
        self.number, self.events = 0, []

    def call(self, method, params=None):
        self.number += 1
        self.send(json.dumps({"id": self.number, "method": method, "params": params or {}}).encode())
        while True:
            message = json.loads(self.receive())
            if message.get("id") == self.number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)
                del self.events[:-20000]

    def send(self, payload):
        mask = os.urandom(4)
        length = len(payload)
        head = b"\x81" + (
            bytes([0x80 | length]) if length < 126
            else b"\xfe" + struct.pack(">H", length) if length < 65536
            else b"\xff" + struct.pack(">Q", length)
        )
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        self.stream.sendall(head + mask + masked)

    def receive(self):
        whole = b""
        while True:
            first, second = self.take(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack(">H", self.take(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self.take(8))
            payload = self.take(length)
            if first & 0x0F in (0, 1, 2):
                whole += payload
                if first & 0x80:
                    return whole

    def take(self, count):
        taken = b""
        while len(taken) < count:
            piece = self.stream.recv(count - len(taken))
            if not piece:
                raise AssertionError("the browser has ended")
            taken += piece
        return taken
