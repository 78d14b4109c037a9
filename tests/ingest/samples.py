"""One small log of every format, all values invented, with what its first row must become.

CANARY stands in every place where a real log of that format may hold content: it must never be stored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

CANARY = "zebra-quartz-7319 please summarise my divorce papers"
EMAIL = "mallory.q@example.org"
API_KEY = "sk-live-8842aa77bb11cc"
USER = "mallory_q_user"
SECRETS = (CANARY, "zebra-quartz", EMAIL, API_KEY, USER)
T0 = 1764576000  # 2025-12-01T08:00:00Z


@dataclass(frozen=True)
class Sample:
    name: str
    file: str
    text: str
    taken: int
    first: dict[str, Any]  # canonical column -> value in the row that comes first by source_line
    rejected: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)  # other files that it needs next to it


def jsonl(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _gateway() -> str:
    row = {
        "request_id": "r-1", "arrival": T0 + 0.25, "instance": "i0", "tenant": USER, "session_id": EMAIL, "turn": 0,
        "slo_class": "interactive", "block_hashes": ["fa14b27e5f09", "ebbc39aaf008"], "prompt_tokens": 50, "cached_tokens": 25,
        "completion_tokens": 7, "max_tokens": 64, "ttft_ms": 12.5, "e2e_ms": 80.25, "status": "ok", "prompt": CANARY,
    }  # fmt: skip
    return jsonl(row, {**row, "request_id": "r-2", "arrival": T0 + 1.5, "status": "timeout"})


def _otlp() -> str:
    def attr(key: str, **value: Any) -> dict[str, Any]:
        return {"key": key, "value": value}

    span = {
        "traceId": "ab" * 16, "spanId": "cd" * 8, "name": "llm_request", "kind": 2,
        "startTimeUnixNano": f"{T0}250000000", "endTimeUnixNano": f"{T0 + 1}150000000",
        "attributes": [
            attr("gen_ai.request.id", stringValue="cmpl-q1-0"), attr("gen_ai.usage.prompt_tokens", intValue="50"),
            attr("gen_ai.usage.completion_tokens", intValue="7"), attr("gen_ai.request.max_tokens", intValue="64"),
            attr("gen_ai.latency.time_to_first_token", doubleValue=0.3), attr("gen_ai.latency.e2e", doubleValue=0.9),
            attr("gen_ai.latency.time_in_queue", doubleValue=0.1), attr("gen_ai.prompt.0.content", stringValue=CANARY),
        ],
    }  # fmt: skip
    client = {**span, "name": "chat m-8b", "kind": 3, "spanId": "ee" * 8, "attributes": [
        attr("gen_ai.usage.input_tokens", intValue="50"), attr("gen_ai.usage.output_tokens", intValue="7"),
        attr("gen_ai.request.model", stringValue="chat-small"), attr("user.email", stringValue=EMAIL)]}  # fmt: skip

    def resource(scope: str, spans: list[Any]) -> dict[str, Any]:
        attributes = [attr("service.name", stringValue="vllm-a"), attr("k8s.pod.name", stringValue="vllm-a-0")]
        return {"resource": {"attributes": attributes}, "scopeSpans": [{"scope": {"name": scope}, "spans": spans}]}

    other = {**span, "name": "GET /health", "attributes": []}
    return jsonl({"resourceSpans": [resource("vllm.llm_engine", [span])]}, {"resourceSpans": [resource("app", [client, other])]})


def _aiperf() -> str:
    row = {
        "metadata": {"x_request_id": "u-1", "x_correlation_id": "c-1", "conversation_id": "conv-9", "turn_index": 1,
                     "request_start_ns": T0 * 10**9 + 250_000_000, "benchmark_phase": "profiling", "was_cancelled": False},
        "metrics": {"time_to_first_token": {"value": 310.0, "unit": "ms"}, "request_latency": {"value": 0.9, "unit": "s"},
                    "input_sequence_length": {"value": 50, "unit": "tokens"}, "output_sequence_length": {"value": 7, "unit": "tokens"}},
        "error": None,
    }  # fmt: skip
    old = {"metadata": {"x_request_id": "u-2", "timestamp_ns": T0 * 10**9 + 500_000_000, "credit_phase": "profiling"},
           "metrics": {}, "error": {"code": 499, "type": "RequestCancellationError", "message": CANARY}}  # fmt: skip
    return jsonl(row, old)


def _guidellm() -> str:
    request = {
        "request_id": "g-1", "response_id": "chatcmpl-x", "request_args": CANARY, "output": CANARY,
        "info": {"timings": {"request_start": T0 + 0.25, "first_token_iteration": T0 + 0.56, "request_end": T0 + 1.15}},
        "input_metrics": {"text_tokens": 50, "cached_tokens": 10}, "output_metrics": {"text_tokens": 7},
        "request_latency": 0.9, "time_to_first_token_ms": 310.0,
    }  # fmt: skip
    errored = {**request, "request_id": "g-2", "output_metrics": {}}
    groups = {"successful": [request], "errored": [errored], "incomplete": []}
    return json.dumps({"metadata": {"version": 2}, "benchmarks": [{"requests": groups}]}, indent=1) + "\n"


def _vllm_bench() -> str:
    run = {
        "date": "20251201-080002", "backend": "openai-chat", "model_id": "m-8b", "tokenizer_id": "m-8b", "num_prompts": 2,
        "request_rate": "inf", "max_concurrency": 2, "input_lens": [50, 90], "output_lens": [4, 0], "ttfts": [0.31, 0.0],
        "itls": [[0.01, 0.02, 0.01], []], "start_times": [8123.25, 8123.5], "errors": ["", CANARY], "generated_texts": [CANARY, ""],
    }  # fmt: skip
    return json.dumps(run) + "\n"


def _litellm() -> str:
    row = {
        "request_id": "chatcmpl-7f00b0", "call_type": "acompletion", "api_key": API_KEY, "prompt_tokens": 50, "completion_tokens": 7,
        "startTime": "2025-12-01 08:00:00.250", "endTime": "2025-12-01 08:00:01.150", "completionStartTime": "2025-12-01 08:00:00.560",
        "model": "m-8b", "model_group": "chat-small", "api_base": f"http://10.0.0.5:8000/v1?key={API_KEY}", "team_id": USER,
        "end_user": EMAIL, "session_id": "s-1", "status": "success", "messages": [{"role": "user", "content": CANARY * 3}],
        "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": 40}}, "attempted_retries": 1},
    }  # fmt: skip
    failed = {**row, "request_id": "f-1", "status": "failure", "completion_tokens": 0, "completionStartTime": row["endTime"]}
    return jsonl(row, failed)


def _envoy() -> str:
    row = {
        "start_time": "2025-12-01T08:00:00.250Z", "method": "POST", "response_code": 200, "response_flags": "-", "duration": 900,
        "upstream_host": "10.0.0.5:8000", "x-request-id": "q-1", "attempts": 2, "gen_ai.request.model": "chat-small",
        "gen_ai.usage.input_tokens": "50", "gen_ai.usage.cached_input_tokens": 40, "gen_ai.usage.output_tokens": 7,
        "token_latency_ttft": 310, "authorization": API_KEY, "path": CANARY,
    }  # fmt: skip
    gone = {**row, "x-request-id": "q-2", "response_code": 0, "response_flags": "DC", "gen_ai.usage.output_tokens": 0}
    return jsonl(row, gone)


def _dynamo() -> str:
    request = {
        "request_id": "d-1", "x_request_id": "q-1", "model": "m-8b", "input_tokens": 128, "cached_tokens": 64, "output_tokens": 7,
        "request_received_ms": T0 * 1000 + 250, "prefill_wait_time_ms": 20.5, "prefill_time_ms": 180.0, "ttft_ms": 310.0,
        "total_time_ms": 900.0, "worker": {"prefill_worker_id": 11, "decode_worker_id": 12},
        "replay": {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [18446744073709551615, 7001]},
    }  # fmt: skip
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": T0 * 1000 + 1150,
             "agent_context": {"session_id": "s-1"}, "request": request}  # fmt: skip
    payload = {"timestamp": 1, "event": {"schema": "dynamo.request.trace.v1", "event_type": "request_payload", "payload": CANARY}}
    return jsonl({"timestamp": 5123, "event": event}, payload)


VLLM_LOG = f"""INFO 12-01 08:00:00 [api_server.py:1289] vLLM API server version 0.9.2
INFO 12-01 08:00:00 [logger.py:39] Received request chatcmpl-7f00aa: prompt: '{CANARY}', params: SamplingParams(n=1, max_tokens=64), prompt_token_ids: [{", ".join(str(i) for i in range(40))}], lora_request: None.
(APIServer pid=7) INFO 12-01 08:00:01 [logger.py:45] Received request chatcmpl-7f00ab: params: SamplingParams(n=1, max_tokens=16), lora_request: None.
INFO 12-01 08:00:02 [logger.py:70] Generated response chatcmpl-7f00aa: output: '{CANARY}', output_token_ids: [11, 12, 13], finish_reason: stop
INFO 12-01 08:00:05 [async_llm.py:611] Request chatcmpl-7f00ab aborted.
"""
SGLANG_TEXT = f"""[2025-12-01 08:00:00] Receive: obj=GenerateReqInput(rid='r-01', text='{CANARY}', sampling_params={{'max_new_tokens': 64}}, stream=True)
[2025-12-01 08:00:01] Finish: obj=GenerateReqInput(rid='r-01'), out={{'text': '{CANARY}', 'meta_info': {{'id': 'r-01', 'finish_reason': {{'type': 'stop', 'matched': 2}}, 'prompt_tokens': 50, 'completion_tokens': 7, 'cached_tokens': 40, 'e2e_latency': 0.9}}}}
"""
SGLANG_STATS = """[2025-12-01 08:00:01 TP0] ReqTimeStats(rid=r-01, input_len=50, cached_input_len=40, output_len=7, attempts=1, type=unified): queue_duration=20.50ms, forward_duration=790.00ms, entry_time=1764576000.250
[2025-12-01 08:00:03 TP0] Req Time Stats(rid=r-02, input len=90, output len=3, type=unified): queue_duration=100.00ms, forward_duration=900.00ms, start_time=8123.110
"""
SGLANG_JSON = (
    '[2025-12-01 08:00:00] {"timestamp":"2025-12-01T08:00:00.250000","event":"request.received","rid":"r-01",'
    '"obj":{"sampling_params":{"max_new_tokens":64},"text":"' + CANARY + '"},"headers":{"x-request-id":"q-1"}}\n'
    '[2025-12-01 08:00:01] {"timestamp":"2025-12-01T08:00:01.150000","event":"request.finished","rid":"r-01","obj":{},'
    '"out":{"text":"' + CANARY + '","meta_info":{"id":"r-01","finish_reason":{"type":"abort"},"prompt_tokens":50,'
    '"completion_tokens":7,"cached_tokens":40,"e2e_latency":0.9,"queue_time":0.1,"weight_version":"v3"}}}\n'
)
SGLANG_FILE = jsonl(
    {"request_parameters": json.dumps({"rid": "r-01", "text": CANARY, "sampling_params": {"max_new_tokens": 64}}), "id": "r-01",
     "finish_reason": {"type": "stop"}, "prompt_tokens": 50, "completion_tokens": 7, "cached_tokens": 40, "e2e_latency": 0.9,
     "queue_time": 0.1, "request_received_ts": T0 + 0.25}
)  # fmt: skip
AIBRIX = """I1201 08:00:00.250000       1 gateway_req.go:190] "request_start" request_id="q-1" request_path="/v1/chat/completions" model="m-8b" stream=true target_pod="m-8b-0" outstanding_requests=3
I1201 08:00:01.150000       1 gateway_rsp.go:238] "request_end" request_id="q-1" model_name="m-8b" prompt_tokens=50 completion_tokens=7 total_tokens=57 target_pod="m-8b-0" total_time_taken="900.2ms"
I1201 08:00:09.000000       1 gateway_rsp.go:238] "request_end" request_id="q-2" model_name="m-8b" prompt_tokens=5 completion_tokens=7 total_tokens=12 target_pod="m-8b-1" total_time_taken="1m2.5s"
"""
STACK = """\x1b[32;20m[2025-12-01 08:00:00,250] INFO:\x1b[0m Routing request q-1 with session id s-1 to http://10.0.0.5:8000 at 1764576000.25, process time = 0.0012 (request.py:301:vllm_router)
[2025-12-01 08:00:00,900] INFO: something else (main.py:1:vllm_router.services)
[2025-12-01 08:00:01,105] INFO: Routing request q-2 with session id None to http://10.0.0.6:8000 at 1764576001.1, process time = 0.0012 (request.py:301:vllm_router)
"""
EPP_JSON = jsonl(
    {"level": "info", "ts": "2025-12-01T08:00:00.250Z", "caller": "handlers/server.go:210", "msg": "EPP received request", "x-request-id": "q-1"},
    {"level": "info", "ts": "2025-12-01T08:00:01.150Z", "caller": "handlers/server.go:330", "msg": "EPP sent response body back to proxy",
     "x-request-id": "q-1", "modelName": "chat-small", "targetModelName": "m-8b"},
    {"level": "info", "ts": "2025-12-01T08:00:02.150Z", "msg": "EPP received request", "x-request-id": "q-2"},
)  # fmt: skip
EPP_CONSOLE = """2025-12-01T08:00:00Z\tINFO\thandlers/server.go:210\tEPP received request\t{"x-request-id": "q-1"}
2025-12-01T08:00:01Z\tINFO\thandlers/server.go:330\tEPP sent response body back to proxy\t{"x-request-id": "q-1", "modelName": "chat-small"}
"""
TGI = (
    '2025-12-01T08:00:01.150000Z  INFO chat_completions{parameters="GenerateParameters { max_new_tokens: Some(64) }" '
    'total_time="900ms" validation_time="310µs" queue_time="100ms" inference_time="790ms" time_per_token="10ms" seed="None"}: '
    "text_generation_router::server: Success\n"
)
LANGFUSE = jsonl(
    {"id": "ob-1", "trace_id": "tr-1", "type": "GENERATION", "start_time": "2025-12-01 08:00:00.250000",
     "end_time": "2025-12-01 08:00:01.150000", "completion_start_time": "2025-12-01 08:00:00.560000", "provided_model_name": "m-8b",
     "model_parameters": '{"max_tokens":64}', "usage_details": {"input": 10, "input_cached_tokens": 40, "output": 7, "total": 57},
     "level": "DEFAULT", "session_id": "s-1", "user_id": EMAIL, "input": CANARY, "output": CANARY},
    {"id": "ob-2", "trace_id": "tr-1", "type": "SPAN", "start_time": "2025-12-01 08:00:00.250000", "usage_details": {}},
)  # fmt: skip
HELICONE = jsonl(
    {"request_id": "h-1", "request_created_at": "2025-12-01T08:00:00.250Z", "response_status": 200, "delay_ms": 900,
     "time_to_first_token": 310, "prompt_tokens": 50, "completion_tokens": 7, "response_model": "m-8b", "request_user_id": EMAIL,
     "request_body": CANARY, "request_properties": {"Helicone-Session-Id": "s-1"}},
)  # fmt: skip
KONG = jsonl(
    {"started_at": T0 * 1000 + 250, "latencies": {"request": 900, "proxy": 310}, "tries": [{"ip": "10.0.0.5", "port": 8000}],
     "ai": {"proxy": {"usage": {"prompt_tokens": 50, "completion_tokens": 7, "time_to_first_token": 310},
                      "meta": {"response_model": "m-8b"}, "payload": {"request": CANARY}}}, "response": {"status": 200}},
)  # fmt: skip
APISIX = jsonl(
    {"start_time": T0 * 1000 + 250, "latency": 900.0, "upstream": "10.0.0.5:8000",
     "llm_summary": {"model": "m-8b", "duration": 310, "prompt_tokens": 50, "completion_tokens": 7}},
)  # fmt: skip
INFERENCE_PERF = json.dumps([
    {"start_time": 8123.25, "end_time": 8124.15, "request": json.dumps({"model": "m-8b", "max_tokens": 64, "prompt": CANARY}),
     "response": CANARY, "info": {"request_metrics": {"text": {"input_tokens": 50}}, "response_metrics": {"output_tokens": 7, "chunk_times": [8123.56]}},
     "error": None}
]) + "\n"  # fmt: skip
PERF_ANALYZER = json.dumps(
    {"service_kind": "openai", "endpoint": "v1/chat/completions", "experiments": [
        {"requests": [{"timestamp": T0 * 10**9 + 250_000_000, "response_timestamps": [T0 * 10**9 + 560_000_000, T0 * 10**9 + 1_150_000_000],
                       "request_inputs": {"p": CANARY}, "response_outputs": [CANARY]}],
         "window_boundaries": [T0 * 10**9, (T0 + 60) * 10**9]}]}
) + "\n"  # fmt: skip
BLIS = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,input_tokens,output_tokens,model,deadline_us,server_input_tokens,"
    "arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,error_message,finish_reason\n"
    f"0,c1,{USER},standard,s1,0,50,7,m-8b,5000000,0,250000,250000,560000,1150000,7,ok,{CANARY},stop\n"
)
VTC = jsonl({"config": {"duration": 600}, "result": {"responses": [
    {"adapter_dir": USER, "prompt_len": 50, "output_len": 7, "request_latency": 0.9, "first_token_latency": 0.31, "req_time": 0.25},
    {"adapter_dir": USER, "prompt_len": 50, "output_len": 7, "request_latency": -1, "first_token_latency": -1, "req_time": 0.5}]}})  # fmt: skip
SERVEGEN = "0,2.0,1.0,Gamma,1,0.5\n600,0,0,,0,0\n1200,1.0,2.0,Weibull,1,1\n"
SERVEGEN_LENGTHS = json.dumps({"0": {"input_tokens": "{50: 1.0}", "output_tokens": "{7: 0.5, 9: 0.5}"}})
AGENTS = jsonl(
    {"timestamp": "2025-12-01T08:00:00.250000+00:00", "session": "s-1", "model": "m-8b", "status": "success", "prompt_tokens": 512,
     "completion_tokens": 7, "prompt_chars": 2048, "block_chars": 1024, "prefix_chain_hashes": [11, 12]},
)  # fmt: skip

SAMPLES: tuple[Sample, ...] = (
    Sample("gateway", "requests.jsonl", _gateway(), 2, {
        "request_id": "r-1", "arrival_us": T0 * 10**6 + 250_000, "input_tokens": 50, "cached_tokens": 25, "output_tokens": 7,
        "ttft_us": 12_500, "e2e_us": 80_250, "status": "ok", "blocks": [0xFA14B27E5F09, 0xEBBC39AAF008], "block_size": 25}),
    Sample("mooncake", "trace.jsonl", jsonl({"timestamp": 3000, "input_length": 1100, "output_length": 40, "hash_ids": [0, 1, 17]},
        {"session_id": "s-1", "delay": 1500, "input_length": 1300, "output_length": 12, "hash_ids": [0, 1, 18]}), 2, {
        "arrival_us": 3_000_000, "input_tokens": 1100, "block_size": 512, "time_base": "relative"}),
    Sample("azure", "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1234500,812,40\n2023-11-16 18:15:47,90,12\n"
        "2024-05-10 00:00:00+02:00,7,8\n", 3, {"arrival_us": 1_700_158_546_123_450, "input_tokens": 812, "output_tokens": 40}),
    Sample("burstgpt", "burst.csv", "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,s-1,0.9,ChatGPT,812,40,852,Conversation log\n6,,0.2,GPT-4,90,0,90,API log\n", 2, {
        "arrival_us": 5_000_000, "e2e_us": 900_000, "output_tokens": 40, "status": "ok", "model": "ChatGPT"}),
    Sample("bailian", "bailian.jsonl", jsonl(
        {"chat_id": 7, "parent_chat_id": -1, "timestamp": 12.5, "input_length": 40, "output_length": 9, "type": "text", "turn": 1, "hash_ids": [1, 2]},
        {"chat_id": 8, "parent_chat_id": 7, "timestamp": 19.5, "input_length": 60, "output_length": 9, "type": "text", "turn": 2, "hash_ids": [1, 2, 3]}), 2, {
        "arrival_us": 12_500_000, "turn": 0, "block_size": 16, "request_id": "7"}),
    Sample("otlp", "traces.json", _otlp(), 2, {"request_id": "cmpl-q1", "arrival_us": T0 * 10**6 + 250_000, "queue_us": 100_000,
        "ttft_us": 300_000, "e2e_us": 900_000, "vantage": "engine", "instance": "vllm-a-0", "max_tokens": 64}),
    Sample("vllm_log", "vllm.log", VLLM_LOG, 2, {"request_id": "chatcmpl-7f00aa", "arrival_us": T0 * 10**6, "input_tokens": 40,
        "output_tokens": 3, "max_tokens": 64, "status": "ok", "finish_reason": "stop", "e2e_us": 2_000_000}, options={"year": 2025}),
    Sample("sglang_log", "text.log", SGLANG_TEXT, 1, {"request_id": "r-01", "arrival_us": T0 * 10**6, "cached_tokens": 40,
        "e2e_us": 900_000, "max_tokens": 64, "finish_reason": "stop"}),
    Sample("sglang_log", "stats.log", SGLANG_STATS, 2, {"request_id": "r-01", "arrival_us": T0 * 10**6 + 250_000, "cached_tokens": 40,
        "queue_us": 20_500, "e2e_us": 810_500}),
    Sample("sglang_log", "json.log", SGLANG_JSON, 1, {"request_id": "r-01", "arrival_us": T0 * 10**6 + 250_000, "status": "cancelled",
        "queue_us": 100_000, "model_version": "v3", "corr_id": "q-1"}),
    Sample("sglang_log", "metrics.log", SGLANG_FILE, 1, {"request_id": "r-01", "arrival_us": T0 * 10**6 + 250_000, "max_tokens": 64}),
    Sample("dynamo", "dynamo.jsonl", _dynamo(), 1, {"request_id": "d-1", "arrival_us": T0 * 10**6 + 250_000, "queue_us": 20_500,
        "blocks": [18446744073709551615, 7001], "block_size": 64, "instance": "12", "ttft_us": 310_000}),
    Sample("litellm", "spend.jsonl", _litellm(), 2, {"request_id": "chatcmpl-7f00b0", "arrival_us": T0 * 10**6 + 250_000,
        "ttft_us": 310_000, "e2e_us": 900_000, "cached_tokens": 40, "instance": "10.0.0.5:8000", "attempt_no": 1, "model": "chat-small"}),
    Sample("envoy", "access.log", _envoy(), 2, {"request_id": "q-1", "arrival_us": T0 * 10**6 + 250_000, "input_tokens": 50,
        "ttft_us": 310_000, "attempt_no": 1, "instance": "10.0.0.5:8000", "status": "ok"}),
    Sample("production_stack", "router.log", STACK, 2, {"request_id": "q-1", "arrival_us": T0 * 10**6 + 250_000, "instance": "10.0.0.5:8000"}),
    Sample("epp", "epp.jsonl", EPP_JSON, 2, {"request_id": "q-1", "arrival_us": T0 * 10**6 + 250_000, "e2e_us": 900_000, "model": "m-8b"}),
    Sample("epp", "epp.log", EPP_CONSOLE, 1, {"request_id": "q-1", "arrival_us": T0 * 10**6, "e2e_us": 1_000_000}),
    Sample("aibrix", "aibrix.log", AIBRIX, 2, {"request_id": "q-1", "arrival_us": T0 * 10**6 + 250_000, "e2e_us": 900_200,
        "input_tokens": 50, "instance": "m-8b-0"}, options={"year": 2025}),
    Sample("tgi", "tgi.log", TGI, 1, {"arrival_us": T0 * 10**6 + 250_000, "e2e_us": 900_000, "queue_us": 100_310, "output_tokens": 79,
        "max_tokens": 64}),
    Sample("aiperf", "profile_export.jsonl", _aiperf(), 2, {"request_id": "u-1", "arrival_us": T0 * 10**6 + 250_000, "ttft_us": 310_000,
        "e2e_us": 900_000, "turn": 1, "status": "ok", "phase": "measured"}),
    Sample("guidellm", "guidellm.json", _guidellm(), 2, {"request_id": "g-1", "arrival_us": T0 * 10**6 + 250_000, "ttft_us": 310_000,
        "cached_tokens": 10, "status": "ok"}),
    Sample("vllm_bench", "bench.json", _vllm_bench(), 2, {"arrival_us": 8_123_250_000, "ttft_us": 310_000, "e2e_us": 350_000,
        "time_base": "monotonic", "output_tokens": 4, "status": "ok"}),
    Sample("inference_perf", "lifecycle.json", INFERENCE_PERF, 1, {"arrival_us": 8_123_250_000, "ttft_us": 310_000, "e2e_us": 900_000,
        "max_tokens": 64, "time_base": "monotonic"}),
    Sample("perf_analyzer", "profile_export.json", PERF_ANALYZER, 1, {"arrival_us": T0 * 10**6 + 250_000, "ttft_us": 310_000, "e2e_us": 900_000}),
    Sample("langfuse", "langfuse.jsonl", LANGFUSE, 1, {"request_id": "ob-1", "input_tokens": 50, "cached_tokens": 40, "ttft_us": 310_000}),
    Sample("helicone", "helicone.jsonl", HELICONE, 1, {"request_id": "h-1", "ttft_us": 310_000, "e2e_us": 900_000, "http_status": 200}),
    Sample("kong", "kong.jsonl", KONG, 1, {"arrival_us": T0 * 10**6 + 250_000, "ttft_us": 310_000, "instance": "10.0.0.5:8000", "attempt_no": 0}),
    Sample("apisix", "apisix.jsonl", APISIX, 1, {"arrival_us": T0 * 10**6 + 250_000, "ttft_us": 310_000, "e2e_us": 900_000}),
    Sample("lmbench", "lmbench.csv", "prompt_tokens,generation_tokens,ttft,generation_time,user_id,question_id,launch_time,finish_time\n"
        f"50.0,7.0,0.31,0.59,2,1,{T0 + 0.25},{T0 + 1.15}\n", 1, {"arrival_us": T0 * 10**6 + 250_000, "ttft_us": 310_000, "e2e_us": 900_000, "turn": 0}),
    Sample("blis", "blis.csv", BLIS, 1, {"arrival_us": 250_000, "ttft_us": 310_000, "e2e_us": 900_000, "deadline_us": 4_750_000}),
    Sample("inferencex", "client.csv", "start_time_ms,relative_time_sec,ttft_ms,tpot_ms,latency_ms,input_num_turns,input_num_tokens,"
        "output_num_tokens,conversation_id,client_id\n3226992611.568,0.25,310.0,12.0,900.0,3,50,7,c-1,3\n", 1, {
        "arrival_us": 250_000, "ttft_us": 310_000, "turn": 1}),
    Sample("llmservingsim", "run.jsonl", jsonl({"request_id": "b-0", "input_toks": 50, "output_toks": 7, "arrival_time": T0 + 0.25,
        "queued_ts": 100.0, "scheduled_ts": 100.1, "first_token_ts": 100.31, "last_token_ts": 100.9}), 1, {
        "arrival_us": T0 * 10**6 + 250_000, "queue_us": 100_000, "ttft_us": 310_000, "e2e_us": 900_000}),
    Sample("vtc", "vtc.jsonl", VTC, 2, {"arrival_us": 250_000, "ttft_us": 310_000, "status": "ok", "output_tokens": 7}),
    Sample("servegen", "chunk-3-trace.csv", SERVEGEN, 40, {"input_tokens": 50, "time_base": "relative"},
        options={"requests": 40}, beside={"chunk-3-dataset.json": SERVEGEN_LENGTHS}),
    Sample("agents", "agents.jsonl", AGENTS, 1, {"arrival_us": T0 * 10**6 + 250_000, "blocks": [11, 12], "block_size": 256}),
)  # fmt: skip
