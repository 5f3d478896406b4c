"""An xDS server built on grpcio. Sends one response for each input line, and prints one line for each request.

An input line is `{"version": "1", "resources": [RateLimitConfig in JSON]}`, or has `{"raw": [bytes]}` instead of the resources.
The last response is sent again to each new stream whose version differs. With `"insists": true` it is also sent again
immediately after each refusal, like go-control-plane does. Arguments: an address, the folder of the protos and, for TLS, the
files of the key, the certificate and the client CA.
"""

import json
import queue
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf import json_format

sys.path.insert(0, sys.argv[2])
ads, ads_services = grpc.protos_and_services("ads.proto")
TYPE = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
streams, last, insists, lock = [], None, False, threading.Lock()


class Servicer(ads_services.AggregatedDiscoveryServiceServicer):
    def StreamAggregatedResources(self, requests, context):
        responses = queue.Queue()

        def read():
            try:
                for number, request in enumerate(requests):
                    print(json.dumps(json_format.MessageToDict(request)), flush=True)
                    with lock:
                        if number == 0:
                            streams.append(responses)
                            if last is not None and last.version_info != request.version_info:
                                responses.put(last)
                        elif insists and request.HasField("error_detail"):
                            last.nonce += "+"
                            responses.put(last)
            except grpc.RpcError:
                pass
            responses.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (response := responses.get()) is not None:
            yield response


server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
ads_services.add_AggregatedDiscoveryServiceServicer_to_server(Servicer(), server)
if len(sys.argv) > 3:
    key, certificate, ca = (open(path, "rb").read() for path in sys.argv[3:6])
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    port = server.add_secure_port(sys.argv[1], credentials)
else:
    port = server.add_insecure_port(sys.argv[1])
assert port
server.start()
print(json.dumps({"port": port}), flush=True)

for nonce, line in enumerate(sys.stdin):
    call = json.loads(line)
    response = ads.DiscoveryResponse(version_info=call["version"], type_url=TYPE, nonce=str(nonce))
    for resource in call.get("resources", []):
        config = json_format.ParseDict(resource, ads.RateLimitConfig())
        response.resources.add(type_url=TYPE, value=config.SerializeToString())
    if "raw" in call:
        response.resources.add(type_url=TYPE, value=bytes(call["raw"]))
    with lock:
        last, insists = response, call.get("insists", False)
        for stream in streams:
            stream.put(response)
