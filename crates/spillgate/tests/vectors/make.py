#!/usr/bin/env python3
"""Writes the vector files beside it: an independent implementation of each algorithm, in fractions and with the
system's calendar.

It shares no line and no library with the code under test. Run it after adding a story. The files are committed,
and a test runs them through every implementation.

A line is `instant_us act cost | decision remaining retry_after_us reset_after_us`.
"""

import math
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

UTC = ZoneInfo("UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "second": 1000,
         "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000,
         "month": 30 * 86_400_000, "year": 365 * 86_400_000}


def us(text, zone="UTC", fold=0):
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return (at.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


def period(quota):
    count, length = quota.split("/")
    digits = "".join(c for c in length if c.isdigit())
    return int(count), (int(digits) if digits else 1) * UNITS[length[len(digits):]] * 1000


class TokenBucket:
    def __init__(self, quota, burst=None, zone=None):
        self.count, self.period = period(quota)
        self.burst = burst or self.count
        self.level, self.at = Fraction(0), None

    def now(self, at):
        drained = Fraction(at - (self.at or at)) * self.count / self.period
        return max(Fraction(0), self.level - drained)

    def charge(self, at, cost):
        self.level, self.at = self.now(at) + cost, at

    def room(self, at):
        return max(0, self.burst - math.ceil(self.now(at)))

    def wait(self, at, cost):
        return max(0, math.ceil((self.now(at) + cost - self.burst) * self.period / self.count))

    def reset(self, at):
        return math.ceil(self.now(at) * self.period / self.count)


class FixedWindow:
    def __init__(self, quota, burst=None, zone="UTC"):
        self.count, self.period = period(quota)
        unit = quota.split("/")[1]
        self.unit = unit if unit in ("day", "week", "month", "year") else None
        self.zone = ZoneInfo(zone or "UTC")
        self.used, self.window = 0, None

    def span(self, at):
        if not self.unit:
            start = at // self.period * self.period
            return start, start + self.period
        local = (EPOCH + timedelta(microseconds=at)).astimezone(self.zone)
        day = datetime(local.year, local.month, local.day)
        if self.unit == "day":
            start, end = day, day + timedelta(days=1)
        elif self.unit == "week":
            start = day - timedelta(days=day.weekday())
            end = start + timedelta(days=7)
        elif self.unit == "month":
            start = day.replace(day=1)
            end = (start + timedelta(days=32)).replace(day=1)
        else:
            start = day.replace(month=1, day=1)
            end = start.replace(year=start.year + 1)
        return self.begins(start), self.begins(end)

    def begins(self, midnight):
        at = midnight.replace(tzinfo=self.zone)
        instant = at.astimezone(UTC)
        if instant.astimezone(self.zone).replace(tzinfo=None) != midnight:
            # This midnight does not exist: the day begins at the instant that the clocks jumped to.
            low, high = instant - timedelta(hours=3), instant + timedelta(hours=3)
            while high - low > timedelta(microseconds=1):
                middle = low + (high - low) / 2
                before = middle.astimezone(self.zone).replace(tzinfo=None) < midnight
                low, high = (middle, high) if before else (low, middle)
            instant = high
        return (instant - EPOCH) // timedelta(microseconds=1)

    def now(self, at):
        return self.used if self.window == self.span(at) else 0

    def charge(self, at, cost):
        self.used, self.window = self.now(at) + cost, self.span(at)

    def room(self, at):
        return self.count - self.now(at)

    def wait(self, at, cost):
        return 0 if cost <= self.room(at) else self.span(at)[1] - at

    def reset(self, at):
        return self.span(at)[1] - at if self.now(at) else 0


class SlidingLog:
    def __init__(self, quota, burst=None, zone=None):
        self.count, self.period = period(quota)
        self.calls = []

    def live(self, at):
        return [(t, c) for t, c in self.calls if t + self.period > at]

    def charge(self, at, cost):
        self.calls.append((at, cost))

    def room(self, at):
        return self.count - sum(c for _, c in self.live(at))

    def wait(self, at, cost):
        left = sum(c for _, c in self.live(at))
        for t, c in [(at - self.period, 0)] + self.live(at):
            left -= c
            if left + cost <= self.count:
                return t + self.period - at
        raise AssertionError("a cost within the count fits eventually")

    def reset(self, at):
        live = self.live(at)
        return live[-1][0] + self.period - at if live else 0


class SlidingWindow:
    def __init__(self, quota, burst=None, zone=None):
        self.count, self.period = period(quota)
        self.counts = {}

    def used(self, at):
        window, part = divmod(at, self.period)
        prev = self.counts.get(window - 1, 0) * Fraction(self.period - part, self.period)
        return self.counts.get(window, 0) + prev

    def charge(self, at, cost):
        window = at // self.period
        self.counts[window] = self.counts.get(window, 0) + cost

    def room(self, at):
        return math.floor(self.count - self.used(at))

    def wait(self, at, cost):
        low, high = 0, 2 * self.period
        while low < high:
            middle = (low + high) // 2
            if self.used(at + middle) + cost <= self.count:
                high = middle
            else:
                low = middle + 1
        return low

    def reset(self, at):
        window = at // self.period
        if self.counts.get(window):
            return (window + 2) * self.period - at
        return (window + 1) * self.period - at if self.counts.get(window - 1) else 0


class Story:
    def __init__(self, kind, comment, quota, burst=None, zone=None):
        self.counter = kind(quota, burst, zone)
        self.lines = [f"\n# {comment}", f"limit {quota}" + (f" burst {burst}" if burst else "")
                      + (f" zone {zone}" if zone else "")]

    def check(self, at, cost=1):
        room = self.counter.room(at)
        wait = self.counter.wait(at, max(1, cost))
        allowed = wait == 0
        if allowed and cost:
            self.counter.charge(at, cost)
            room = self.counter.room(at)
        decision = "allowed" if allowed else "denied"
        self.lines.append(f"{at} check {cost} | {decision} {room} {wait} {self.counter.reset(at)}")
        return at + wait

    def tight(self, at, cost=1):
        """Checks; after a denial also one microsecond before the promised instant, and at it."""
        then = self.check(at, cost)
        if then > at:
            self.check(then - 1, cost)
            self.check(then, cost)
        return then


def rate(kind, quota, burst=None):
    """Exhausts the limit at once, checks at exact instants, then makes calls of several costs at odd instants."""
    story = Story(kind, f"{quota}: exhausted at once, then checked at exact instants", quota, burst)
    start = us("2026-11-20T13:37:00.000001")
    capacity = burst or period(quota)[0]
    story.check(start, capacity)
    at = story.tight(start, 1)
    at = story.tight(at, max(1, capacity // 3))
    at = story.tight(at + 1, capacity)
    for step in (1, 17, 999, 123_457, 5_000_011, 61_000_003):
        at += step
        story.check(at, 1)
        story.check(at, 0)
        story.check(at, max(1, capacity // 7))
    return story


def calendar(quota, zone, instants):
    story = Story(FixedWindow, f"{quota} in {zone}", quota, None, zone)
    end = 0
    for at in sorted(instants):
        if at <= end:
            continue
        _, end = story.counter.span(at)
        story.check(at, 2)
        story.check(end - 1, 1)
        story.check(end, 1)
    return story


def write(name, stories):
    here = Path(__file__).parent / f"{name}.txt"
    text = "\n".join("\n".join(story.lines) for story in stories)
    here.write_text(f"# {name}: written by make.py, an independent implementation in fractions.\n{text}\n")


def main():
    write("token-bucket", [
        *(rate(TokenBucket, quota) for quota in (
            "777777/day", "1234567/day", "3000017/hour", "1000003/day", "1/second", "3/second",
            "7/second", "600/second", "999/second", "1000/second", "1001/second", "3000/second",
            "1000000/second", "1/366d", "1000000000/1ms", "1000000000/year", "13/17ms")),
        rate(TokenBucket, "100/second", 200), rate(TokenBucket, "100/hour", 7),
        rate(TokenBucket, "1/day", 1000),
    ])
    write("sliding-window", [rate(SlidingWindow, quota) for quota in (
        "104250/day", "1000000000/month", "1000000000/366d", "100/minute", "7/90s", "1/hour", "5/1ms")])
    write("sliding-log", [rate(SlidingLog, quota) for quota in (
        "100/minute", "7/90s", "1/hour", "10000/day", "5/1ms", "3/366d", "1000/month")])
    zones = ("Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kathmandu", "UTC")
    dates = ["2024-02-28T12:00", "2024-02-29T12:00", "2026-02-28T23:59:59", "2026-03-29T00:30",
             "2026-03-08T04:00", "2026-10-25T00:30", "2026-11-01T04:30", "2026-12-31T22:30",
             "2100-02-28T12:00"]
    stories = [calendar(f"3/{unit}", zone, [us(date) for date in dates])
               for unit in ("day", "week", "month", "year") for zone in zones]
    stories += [calendar("3/day", "America/Sao_Paulo", [us("2018-11-03T12:00"), us("2018-11-04T12:00")]),
                calendar("3/day", "Africa/Cairo", [us("2014-05-15T12:00"), us("2014-05-16T12:00")])]
    stories += [rate(FixedWindow, quota) for quota in ("100/minute", "7/90s", "1000000000/hour", "5/1ms", "3/366d")]
    write("fixed-window", stories)


main()
