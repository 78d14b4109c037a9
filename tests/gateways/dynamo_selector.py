"""Runs inside Dynamo's environment: ask its selector for a list of requests; prints the worker chosen and booked for each.

python dynamo_selector.py WORKERS BLOCK < steps.json      (costs are in its log, on stdout too)
"""

import asyncio
import json
import sys

from dynamo._core import SelectionService


async def main() -> None:
    steps, workers, block = json.load(sys.stdin), int(sys.argv[1]), int(sys.argv[2])
    service = SelectionService()
    for w in range(workers):
        worker = {
            "worker_id": w, "model_name": "m", "block_size": block, "endpoint": f"http://127.0.0.1:{9001 + w}",
            "kv_events_endpoints": {0: f"tcp://127.0.0.1:{9101 + w}"}, "max_num_batched_tokens": 8192, "total_kv_blocks": 100000,
        }  # fmt: skip
        await service.upsert_worker(worker)
    for what, name, tokens in steps:
        if what == "ask":
            found = await service.select_and_reserve(
                {"model_name": "m", "token_ids": tokens, "selection_id": name}
            )
            print("CHOSEN " + json.dumps([name, found["worker_id"]]), flush=True)
        elif what == "prefilled":
            await service.prefill_complete(name)
        else:
            await service.free_reservation(name)


asyncio.run(main())
