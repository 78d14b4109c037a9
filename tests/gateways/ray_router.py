"""Runs inside Ray's environment: Serve with two replicas and the exported router; prints which replica each request got.

python ray_router.py KWARGS.json < prompts.json     (a list of prompts, asked for one after the other)
"""

import json
import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

# ray.serve.llm, which the exported config names, asks for vLLM when it is imported; this is the class behind it
ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router:PrefixCacheAffinityRouter"


class Request:
    def __init__(self, prompt: str) -> None:
        self.prompt = prompt


def main() -> None:
    with open(sys.argv[1]) as file:
        kwargs = json.load(file)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    config = RequestRouterConfig(request_router_class=ROUTER, request_router_kwargs=kwargs)

    @serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.5}, request_router_config=config)
    class Replica:
        def chat(self, request: Request) -> int:
            return os.getpid()

    handle = serve.run(Replica.bind(), route_prefix=None)
    found = [handle.chat.remote(Request(prompt)).result(timeout_s=30) for prompt in json.load(sys.stdin)]
    print("SERVED " + json.dumps(found), flush=True)
    serve.shutdown()
    ray.shutdown()


main()
