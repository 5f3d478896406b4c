"""Calls the rate-limit service with grpcio. Reads one JSON request per input line and prints one response per line."""

import json
import sys

import grpc
from google.protobuf import json_format

sys.path.insert(0, sys.argv[2])
rls, rls_services = grpc.protos_and_services("rls.proto")
health, health_services = grpc.protos_and_services("health.proto")
channel = grpc.insecure_channel(sys.argv[1])
should_rate_limit = rls_services.RateLimitServiceStub(channel).ShouldRateLimit
check = health_services.HealthStub(channel).Check
watch = health_services.HealthStub(channel).Watch
watched = None
raw = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")

for line in sys.stdin:
    call = json.loads(line)
    try:
        if "health" in call:
            response = check(health.HealthCheckRequest(service=call["health"]), timeout=30, wait_for_ready=True)
        elif "watch" in call:
            # A name starts a watch; `null` waits for the next message of the current watch.
            if call["watch"] is not None:
                watched = watch(health.HealthCheckRequest(service=call["watch"]), timeout=60, wait_for_ready=True)
            response = next(watched)
        elif "raw" in call:
            raw(bytes(call["raw"]), timeout=30, wait_for_ready=True)
            response = rls.RateLimitResponse()
        else:
            request = json_format.ParseDict(call["request"], rls.RateLimitRequest())
            metadata = list(call.get("metadata", {}).items())
            response = should_rate_limit(request, timeout=30, wait_for_ready=True, metadata=metadata)
        printed = json_format.MessageToDict(response, preserving_proto_field_name=True)
    except grpc.RpcError as error:
        printed = {"error": error.code().name, "detail": error.details()}
    print(json.dumps(printed), flush=True)
