"""Checks the gRPC API with grpcio. Argument: the port of a server with the rule of tests/it/envoy/grpcio.rs.
The messages come from the API's own reflection. Fails if any answer differs."""

import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
SECONDS_MAX = 60


def expect(found, expected):
    assert found == expected, f"expected {expected!r}, found {found!r}"


channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")

reflection = ProtoReflectionDescriptorDatabase(channel)
services = set(reflection.get_services())
assert {SERVICE, "grpc.health.v1.Health"} <= services, services
pool = descriptor_pool.DescriptorPool(reflection)
method = pool.FindServiceByName(SERVICE).FindMethodByName("ShouldRateLimit")
Request = message_factory.GetMessageClass(method.input_type)
Response = message_factory.GetMessageClass(method.output_type)

health = health_pb2_grpc.HealthStub(channel)
for service in ("", SERVICE):
    answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS_MAX)
    expect(answer.status, health_pb2.HealthCheckResponse.SERVING)

should_rate_limit = channel.unary_unary(
    f"/{SERVICE}/ShouldRateLimit",
    request_serializer=Request.SerializeToString,
    response_deserializer=Response.FromString,
)


def ask(*users, hits=0):
    request = Request(domain="web", hits_addend=hits)
    for user in users:
        entry = request.descriptors.add().entries.add()
        # Reflection names Envoy's type of a value: a string.
        entry.key, entry.value = "user", user
    return should_rate_limit(request, timeout=SECONDS_MAX)


OK, OVER_LIMIT = 1, 2
first = ask("ann")
expect(first.overall_code, OK)
expect([status.limit_remaining for status in first.statuses], [2])
expect(first.statuses[0].current_limit.name, "api")
expect(ask("ann", hits=2).statuses[0].limit_remaining, 0)
refused = ask("bob", "ann")
expect(refused.overall_code, OVER_LIMIT)
expect([status.code for status in refused.statuses], [OK, OVER_LIMIT])
assert 0 < refused.statuses[1].duration_until_reset.seconds <= 8 * 3600, refused
# A denied call charged no subject.
expect(ask("bob").statuses[0].limit_remaining, 2)
