"""Checks the RESP API with redis-py. Arguments: the port of an open API, the port of one with a password, the
password. Fails if any answer differs."""

import sys

import redis

open_port, guarded_port, password = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def expect_answer(found, expected):
    """Compares answers; seconds may have decreased a little."""
    late = [30 if number > 30 else 0 for number in expected]
    close = all(e - l <= f <= e for f, e, l in zip(found, expected, late, strict=True))
    assert close, f"expected {expected!r}, found {found!r}"


def expect(found, expected):
    assert found == expected, f"expected {expected!r}, found {found!r}"


for protocol in (2, 3):
    client = redis.Redis(port=open_port, protocol=protocol, client_name="story")
    key = f"py{protocol}"
    expect(client.ping(), True)
    expect_answer(client.execute_command("CL.THROTTLE", key, 2, 1, 60), [0, 3, 2, -1, 60])
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(3):
            pipeline.execute_command("CL.THROTTLE", key, 2, 1, 60)
        pipeline.execute_command("CL.THROTTLE", key, 2, 1, 60, 0)
        answers = pipeline.execute()
    for answer, expected in zip(answers, [[0, 3, 1, -1, 120], [0, 3, 0, -1, 180], [1, 3, 0, 60, 180]]):
        expect_answer(answer, expected)
    expect(answers[3][:3], [0, 3, 0])
    expect(client.execute_command("SG.CHECK", "web", 1, "ip", "203.0.113.7"), [1, -1, 0, -1, None, None])
    try:
        client.execute_command("CL.THROTTLE", key, 2, 1, 0)
        raise AssertionError("a period of 0 was accepted")
    except redis.ResponseError as error:
        assert "period: '0'" in str(error), error

    guarded = redis.Redis(port=guarded_port, protocol=protocol, password=password)
    expect_answer(guarded.execute_command("CL.THROTTLE", key, 0, 1, 60), [0, 1, 0, -1, 60])
    try:
        redis.Redis(port=guarded_port, protocol=protocol).execute_command("INFO")
        raise AssertionError("a command without the password was answered")
    except redis.AuthenticationError:
        pass
