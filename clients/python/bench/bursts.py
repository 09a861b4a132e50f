"""Sends bursts through both clients, with work of the application before and after each check.

Usage: SPILLGATE_BIN=PATH PYTHONPATH=src:tests python bench/bursts.py [asyncio|threads]... [--busy] [--faulty]

Prints for each burst how many requests were admitted, and how many were decided without the server: 150 and 0 are right.
`--busy` keeps one core busy by another process. `--faulty` makes every tenth check one that the server refuses.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from server import Server
from spillgate import AsyncClient, Client, Decision, ProblemError

LIMIT = 150
SIZES = (300, 1000, 2000, 5000)
WORK_MS = (0, 1, 4)


def work(ms: float) -> None:
    """Keeps the processor, and so the loop or the interpreter's lock, busy."""
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass


def request(subject: str, number: int, faulty: bool) -> dict[str, Any]:
    attributes = {"user": subject}
    if faulty and number % 20 == 0:
        return {"attributes": {**attributes, "": "a name that is empty"}}
    if faulty and number % 20 == 10:
        return {"attributes": {**attributes, **{f"name{n}": "x" for n in range(40)}}}
    return {"attributes": attributes}


def decided(decision: Decision | None) -> str:
    if decision is None:
        return "refused"
    if decision.source == "client":
        return "alone"
    return "admitted" if decision.allowed else "denied"


async def in_a_loop(url: str, size: int, ms: float, faulty: bool, timeout: float = 0.3) -> list[str]:
    async with AsyncClient(url, timeout=timeout) as client:

        async def serve(number: int) -> str:
            work(ms / 2)
            try:
                decision = await client.check(**request(f"{size}-{ms}", number, faulty))
            except ProblemError:
                return decided(None)
            finally:
                work(ms / 2)
            return decided(decision)

        return list(await asyncio.gather(*[serve(number) for number in range(size)]))


def in_threads(url: str, size: int, ms: float, faulty: bool, timeout: float = 0.3) -> list[str]:
    ends: list[str] = []
    start = threading.Event()
    with Client(url, timeout=timeout) as client:

        def serve(number: int) -> None:
            start.wait()
            work(ms / 2)
            try:
                ends.append(decided(client.check(**request(f"{size}-{ms}", number, faulty))))
            except ProblemError:
                ends.append(decided(None))
            work(ms / 2)

        threads = [threading.Thread(target=serve, args=[number]) for number in range(size)]
        for thread in threads:
            thread.start()
        start.set()
        for thread in threads:
            thread.join()
    return ends


def main() -> None:
    kinds: dict[str, Callable[..., list[str]]] = {
        "asyncio": lambda *given: asyncio.run(in_a_loop(*given)),
        "threads": in_threads,
    }
    chosen = [kind for kind in kinds if kind in sys.argv] or list(kinds)
    faulty = "--faulty" in sys.argv
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if "--busy" in sys.argv else None
    try:
        print("| client | requests | work, ms | seconds | admitted | denied | refused | without the server |")
        print("|---|---|---|---|---|---|---|---|")
        for kind in chosen:
            for size in SIZES:
                for ms in WORK_MS:
                    server = Server(f'[[rule]]\nname = "api"\nkey = ["user"]\nlimits = ["{LIMIT}/day"]\n', token=None)
                    start = time.monotonic()
                    ends = kinds[kind](server.url, size, ms, faulty)
                    seconds = time.monotonic() - start
                    counts = " | ".join(str(ends.count(end)) for end in ("admitted", "denied", "refused", "alone"))
                    print(f"| {kind} | {size} | {ms} | {seconds:.1f} | {counts} |", flush=True)
                    server.close()
    finally:
        if busy is not None:
            busy.kill()


if __name__ == "__main__":
    main()
