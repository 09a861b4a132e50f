// What needs no server.
import assert from "node:assert/strict";
import { test } from "node:test";

import { ClientAddress, Spillgate } from "spillgate";

import { conformance } from "./server.js";

interface Row {
  trusted_proxies: string[];
  peer: string;
  forwarded_for: string[];
  ip: string;
}

test("every client is found", () => {
  for (const row of JSON.parse(conformance("addresses.json")) as Row[]) {
    const found = new ClientAddress(row.trusted_proxies).attribute(row.peer, row.forwarded_for.join(","));
    assert.equal(found, row.ip, JSON.stringify(row));
  }
});

test("refuses what is no network", () => {
  for (const text of ["10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/8/8", "10.0.0.0/-1", "local", ""]) {
    assert.throws(() => new ClientAddress([text]), /is no network; write one such as 10\.0\.0\.0\/8/, text);
  }
});

test("options are checked", () => {
  assert.throws(() => new Spillgate({ url: "127.0.0.1:8080" }), /url must be http:\/\/HOST:PORT/);
  assert.throws(() => new Spillgate({ timeoutMs: 0 }), /timeoutMs must be above 0, got 0/);
  assert.throws(() => new Spillgate({ onFailure: "open" as "allow" }), /onFailure must be "allow" or "deny", got "open"/);
});
