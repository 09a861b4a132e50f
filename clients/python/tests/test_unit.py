"""What needs no server."""

from __future__ import annotations

import json
import math
import unittest
from types import MappingProxyType

from server import CONFORMANCE
from spillgate import AsyncClient, Client, ClientAddress, ProblemError, TokenError
from spillgate._request import BATCH_BYTES, BATCH_CHECKS, bounded, encode, fitting


class Address(unittest.TestCase):
    def test_every_client_is_found(self) -> None:
        for row in json.loads((CONFORMANCE / "addresses.json").read_text()):
            with self.subTest(row):
                proxies = ClientAddress(row["trusted_proxies"])
                self.assertEqual(proxies.attribute(row["peer"], row["forwarded_for"]), row["ip"])

    def test_a_port_of_thousands_of_digits_is_no_port(self) -> None:
        proxies = ClientAddress(["127.0.0.1"])
        self.assertEqual(proxies.attribute("127.0.0.1", ["1.2.3.4:" + "9" * 5000]), "127.0.0.1")
        self.assertEqual(proxies.attribute("127.0.0.1", ["1.2.3.4:" + "0" * 5000 + "80"]), "1.2.3.4")

    def test_refuses_what_is_no_network(self) -> None:
        with self.assertRaisesRegex(ValueError, "'10.0.0.0/33' is not a network; write one such as"):
            ClientAddress(["10.0.0.0/33"])
        with self.assertRaisesRegex(TypeError, "must be a list"):
            ClientAddress("10.0.0.0/8")


class Values(unittest.TestCase):
    def test_any_string_is_a_value_that_the_server_accepts(self) -> None:
        self.assertEqual(bounded("/é"), "/é")
        self.assertEqual(bounded("a" * 4096), "a" * 4096)
        self.assertRegex(bounded("a" * 4097), r"^a{1024}sha256:[0-9a-f]{64}a{1024}$")
        # A character that the cut divides is left out.
        self.assertRegex(bounded("a" + "é" * 4096 + "b"), r"^aé{511}sha256:[0-9a-f]{64}é{511}b$")
        self.assertEqual(bounded("\udc80"), "\ufffd")
        # The length counts after the replacement.
        self.assertRegex(bounded("\udc80" * 1366), r"^\ufffd{341}sha256:[0-9a-f]{64}\ufffd{341}$")

    def test_json_is_what_the_server_reads(self) -> None:
        body = {"a": "\u2028é\"", "b": [1, None, True, {"c": {}}], "d": MappingProxyType({"e": 1})}
        self.assertEqual(json.loads(encode(body)), {**body, "d": {"e": 1}})
        self.assertEqual(encode({"\udc80": "\ud83d"}), '{"\ufffd":"\ufffd"}'.encode())
        with self.assertRaises(TypeError):
            encode({"a": object()})
        # One that is not a number would break a whole batch.
        with self.assertRaises(ValueError):
            encode({"cost": math.nan})

    def test_a_batch_is_bounded_by_number_and_by_bytes(self) -> None:
        self.assertEqual(fitting([b"{}"] * (BATCH_CHECKS + 1)), BATCH_CHECKS)
        self.assertEqual(fitting([b"x" * (BATCH_BYTES - 2)] * 2), 1)
        self.assertEqual(fitting([b"x" * (BATCH_BYTES // 4 - 1)] * 5), 3)

    def test_a_check_that_is_too_large_for_a_batch_fails_alone(self) -> None:
        attributes = {f"name{number}": "x" * 4096 for number in range(200)}
        with self.assertRaisesRegex(ProblemError, "413: a check must have at most 524286 bytes"):
            Client("http://127.0.0.1:1").check(attributes)
        with self.assertRaises(ProblemError) as raised:
            Client("http://127.0.0.1:1").check_batch([{}, {"attributes": attributes}])
        self.assertEqual(raised.exception.field, "[1]")


class Options(unittest.TestCase):
    def test_options_are_checked(self) -> None:
        for kind in (Client, AsyncClient):
            for options in ({"on_failure": "open"}, {"timeout": 0}, {"timeout": math.nan}, {"connections": 0}):
                with self.subTest(options), self.assertRaises(ValueError):
                    kind(**options)  # type: ignore[arg-type]
            for url in ("127.0.0.1:8080", "ftp://host", "http://", "http://host:99999"):
                with self.subTest(url), self.assertRaises(ValueError):
                    kind(url)

    def test_a_token_of_other_characters_is_an_error_at_once(self) -> None:
        for token in ("a\r\nX: b", "a b", "é", "", " \n"):
            with self.subTest(token), self.assertRaises(TokenError):
                Client(token=token)
        Client(token=" 0123456789abcdef\r\n")


if __name__ == "__main__":
    unittest.main()
