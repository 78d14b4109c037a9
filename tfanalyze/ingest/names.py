"""The one table of metric names: what each engine and version calls a quantity, and its canonical name and unit.

Canonical units: seconds, tokens, shares 0..1, bytes, watts, degrees Celsius. A histogram keeps its three parts
(`_bucket` with label `le`, `_sum`, `_count`) under the canonical name. A name that is not listed is kept as it
came. Sources: the string literals of vLLM 0.6 to 0.33, SGLang 0.4.2 to 0.5.23, Dynamo 1.6, TGI, llama.cpp server,
the gateway API inference extension and llm-d router, Triton TRT-LLM, DCGM exporter.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Canon(NamedTuple):
    name: str
    kind: str  # gauge | counter | histogram
    factor: float = 1.0  # raw value times this is in the canonical unit


G, C, H = "gauge", "counter", "histogram"

VLLM: dict[str, Canon] = {
    "num_requests_running": Canon("running", G),
    "num_requests_waiting": Canon("waiting", G),
    "num_requests_swapped": Canon("swapped", G),
    "num_requests_waiting_by_reason": Canon("waiting_by_reason", G),
    "gpu_cache_usage_perc": Canon("kv_usage", G),
    "kv_cache_usage_perc": Canon("kv_usage", G),
    "cpu_cache_usage_perc": Canon("host_kv_usage", G),
    "gpu_prefix_cache_hit_rate": Canon("prefix_hit_share", G),
    "cpu_prefix_cache_hit_rate": Canon("host_prefix_hit_share", G),
    "gpu_prefix_cache_queries": Canon("prefix_query_tokens_total", C),
    "gpu_prefix_cache_hits": Canon("prefix_hit_tokens_total", C),
    "prefix_cache_queries": Canon("prefix_query_tokens_total", C),
    "prefix_cache_hits": Canon("prefix_hit_tokens_total", C),
    "cpu_prefix_cache_queries": Canon("host_prefix_query_tokens_total", C),
    "cpu_prefix_cache_hits": Canon("host_prefix_hit_tokens_total", C),
    "external_prefix_cache_queries": Canon("external_prefix_query_tokens_total", C),
    "external_prefix_cache_hits": Canon("external_prefix_hit_tokens_total", C),
    "prompt_tokens": Canon("prompt_tokens_total", C),
    "generation_tokens": Canon("generation_tokens_total", C),
    "prompt_tokens_by_source": Canon("prompt_tokens_by_source_total", C),
    "prompt_tokens_cached": Canon("cached_prompt_tokens_total", C),
    "prompt_tokens_cached_by_source": Canon("cached_prompt_tokens_by_source_total", C),
    "prompt_tokens_recomputed": Canon("recomputed_tokens_total", C),
    "num_preemptions": Canon("preemptions_total", C),
    "request_success": Canon("requests_finished_total", C),
    "admission_rejections": Canon("requests_rejected_total", C),
    "corrupted_requests": Canon("requests_corrupted_total", C),
    "avg_prompt_throughput_toks_per_s": Canon("prompt_tok_s", G),
    "avg_generation_throughput_toks_per_s": Canon("generation_tok_s", G),
    "time_to_first_token_seconds": Canon("ttft_s", H),
    "time_per_output_token_seconds": Canon("itl_s", H),
    "inter_token_latency_seconds": Canon("itl_s", H),
    "request_time_per_output_token_seconds": Canon("tpot_s", H),
    "e2e_request_latency_seconds": Canon("e2e_s", H),
    "request_queue_time_seconds": Canon("queue_s", H),
    "time_in_queue_requests": Canon("queue_s_duplicate", H),
    "request_prefill_time_seconds": Canon("prefill_s", H),
    "request_decode_time_seconds": Canon("decode_s", H),
    "request_inference_time_seconds": Canon("inference_s", H),
    "model_forward_time_milliseconds": Canon("model_forward_s", H, 1e-3),
    "model_execute_time_milliseconds": Canon("model_execute_s", H, 1e-3),
    "iteration_tokens_total": Canon("step_tokens", H),
    "iteration_tokens": Canon("step_tokens", H),
    "request_prompt_tokens": Canon("request_input_tokens", H),
    "request_generation_tokens": Canon("request_output_tokens", H),
    "request_max_num_generation_tokens": Canon("request_max_num_output_tokens", H),
    "request_params_n": Canon("request_n", H),
    "request_params_max_tokens": Canon("request_max_tokens", H),
    "request_prefill_kv_computed_tokens": Canon("request_computed_tokens", H),
    "request_num_preemptions": Canon("request_preemptions", H),
    "cache_config_info": Canon("kv_config", G),
    "lora_requests_info": Canon("lora_info_time_s", G),
    "spec_decode_num_drafts": Canon("spec_drafts_total", C),
    "spec_decode_num_draft_tokens": Canon("spec_draft_tokens_total", C),
    "spec_decode_num_accepted_tokens": Canon("spec_accepted_tokens_total", C),
}

SGLANG: dict[str, Canon] = {
    "num_running_reqs": Canon("running", G),
    "num_queue_reqs": Canon("waiting", G),
    "num_grammar_queue_reqs": Canon("grammar_waiting", G),
    "num_used_tokens": Canon("kv_used_tokens", G),
    "kv_used_tokens": Canon("kv_used_tokens", G),
    "kv_available_tokens": Canon("kv_free_tokens", G),
    "kv_evictable_tokens": Canon("kv_evictable_tokens", G),
    "max_total_num_tokens": Canon("kv_capacity_tokens", G),
    "page_size": Canon("block_size", G),
    "num_pages": Canon("kv_capacity_blocks", G),
    "token_usage": Canon("kv_usage", G),
    "full_token_usage": Canon("kv_usage_full_attention", G),
    "gen_throughput": Canon("generation_tok_s", G),
    "cache_hit_rate": Canon("prefix_hit_share", G),
    "spec_accept_length": Canon("spec_accept_length", G),
    "prompt_tokens": Canon("prompt_tokens_total", C),
    "generation_tokens": Canon("generation_tokens_total", C),
    "cached_tokens": Canon("prefix_hit_tokens_total", C),
    "evicted_tokens": Canon("evicted_tokens_total", C),
    "realtime_tokens": Canon("tokens_by_mode_total", C),
    "prefill_effective_tokens": Canon("prefill_tokens_by_source_total", C),
    "num_requests": Canon("requests_received_total", C),
    "num_aborted_requests": Canon("requests_aborted_total", C),
    "total_retracted_reqs": Canon("preemptions_total", C),
    "num_retracted_requests": Canon("preemptions_total", C),
    "num_retracted_reqs": Canon("preempted_now", G),
    "time_to_first_token_seconds": Canon("ttft_s", H),
    "time_per_output_token_seconds": Canon("itl_s", H),
    "inter_token_latency_seconds": Canon("itl_s", H),
    "request_time_per_output_token_seconds": Canon("tpot_s", H),
    "e2e_request_latency_seconds": Canon("e2e_s", H),
    "avg_request_queue_latency": Canon("queue_s_mean", G),
    "queue_time_s": Canon("queue_s", H),
    "queue_time_seconds": Canon("queue_s", H),
    "prompt_tokens_histogram": Canon("request_input_tokens", H),
    "generation_tokens_histogram": Canon("request_output_tokens", H),
    "uncached_prompt_tokens_histogram": Canon("request_computed_tokens", H),
    "num_prefill_infight_queue_reqs": Canon("transferring", G),
    "num_prefill_inflight_queue_reqs": Canon("transferring", G),
    "num_decode_prealloc_queue_reqs": Canon("decode_prealloc_waiting", G),
    "num_decode_transfer_queue_reqs": Canon("decode_transferring", G),
    "kv_transfer_latency_ms": Canon("kv_transfer_s", H, 1e-3),
    "kv_transfer_bootstrap_ms": Canon("kv_transfer_bootstrap_s", H, 1e-3),
    "kv_transfer_alloc_ms": Canon("kv_transfer_alloc_s", H, 1e-3),
    "kv_transfer_speed_gb_s": Canon("kv_transfer_bytes_s", H, 1e9),
    "kv_transfer_total_mb": Canon("kv_transfer_bytes", H, 1e6),
    "new_token_ratio": Canon("new_token_ratio", G),
    "context_len": Canon("max_model_len", G),
}

LLAMACPP: dict[str, Canon] = {
    "requests_processing": Canon("running", G),
    "requests_deferred": Canon("waiting", G),
    "kv_cache_usage_ratio": Canon("kv_usage", G),
    "kv_cache_tokens": Canon("kv_used_tokens", G),
    "prompt_tokens": Canon("computed_prompt_tokens_total", C),  # without cached tokens
    "prompt_tokens_cached": Canon("prefix_hit_tokens_total", C),
    "prompt_seconds": Canon("prefill_seconds_total", C),
    "tokens_predicted": Canon("generation_tokens_total", C),
    "tokens_predicted_seconds": Canon("decode_seconds_total", C),
    "n_decode": Canon("steps_total", C),
    "n_tokens_max": Canon("longest_sequence_tokens", G),
    "n_busy_slots_per_decode": Canon("batch_seqs_mean", G),
    "prompt_tokens_seconds": Canon("prompt_tok_s", G),
    "predicted_tokens_seconds": Canon("generation_tok_s", G),
    "spec_decode_num_draft_tokens": Canon("spec_draft_tokens_total", C),
    "spec_decode_num_accepted_tokens": Canon("spec_accepted_tokens_total", C),
}

TGI: dict[str, Canon] = {
    "queue_size": Canon("waiting", G),
    "batch_current_size": Canon("running", G),
    "request_count": Canon("requests_received_total", C),
    "request_success": Canon("requests_finished_total", C),
    "request_failure": Canon("requests_failed_total", C),
    "request_duration": Canon("e2e_s", H),
    "request_queue_duration": Canon("queue_s", H),
    "request_inference_duration": Canon("inference_s", H),
    "request_validation_duration": Canon("validation_s", H),
    "request_mean_time_per_token_duration": Canon("tpot_s", H),
    "request_input_length": Canon("request_input_tokens", H),
    "request_generated_tokens": Canon("request_output_tokens", H),
    "request_max_new_tokens": Canon("request_max_tokens", H),
}

TRTLLM: dict[str, Canon] = {
    "num_requests_running": Canon("running", G),
    "num_requests_waiting": Canon("waiting", G),
    "kv_cache_utilization": Canon("kv_usage", G),
    "kv_cache_hit_rate": Canon("prefix_hit_share", G),
    "kv_cache_max_blocks": Canon("kv_capacity_blocks", G),
    "kv_cache_tokens_per_block": Canon("block_size", G),
    "prompt_cached_tokens": Canon("prefix_hit_tokens_total", C),
    "request_success": Canon("requests_finished_total", C),
    "e2e_request_latency_seconds": Canon("e2e_s", H),
    "time_to_first_token_seconds": Canon("ttft_s", H),
    "time_per_output_token_seconds": Canon("tpot_s", H),
    "request_queue_time_seconds": Canon("queue_s", H),
    "request_prefill_time_seconds": Canon("prefill_s", H),
    "request_decode_time_seconds": Canon("decode_s", H),
    "request_inference_time_seconds": Canon("inference_s", H),
}

DYNAMO: dict[str, Canon] = {
    "frontend_requests": Canon("gateway_requests_total", C),
    "frontend_queued_requests": Canon("gateway_waiting", G),
    "frontend_active_requests": Canon("gateway_running", G),
    "frontend_inflight_requests": Canon("gateway_running", G),
    "frontend_disconnected_clients": Canon("gateway_disconnects_total", C),
    "frontend_request_duration_seconds": Canon("gateway_e2e_s", H),
    "frontend_time_to_first_token_seconds": Canon("gateway_ttft_s", H),
    "frontend_inter_token_latency_seconds": Canon("gateway_itl_s", H),
    "frontend_input_sequence_tokens": Canon("request_input_tokens", H),
    "frontend_output_sequence_tokens": Canon("request_output_tokens", H),
    "frontend_cached_tokens": Canon("request_cached_tokens", H),
    "frontend_kv_hit_rate": Canon("prefix_hit_share", H),
    "frontend_tokenizer_latency_ms": Canon("tokenize_s", H, 1e-3),
    "frontend_model_total_kv_blocks": Canon("kv_capacity_blocks", G),
    "frontend_model_max_num_seqs": Canon("max_num_seqs", G),
    "frontend_model_rejection": Canon("gateway_rejected_total", C),
    "component_kvstats_gpu_cache_usage_percent": Canon("kv_usage", G),
    "component_kvstats_active_blocks": Canon("kv_used_blocks", G),
    "component_kvstats_total_blocks": Canon("kv_capacity_blocks", G),
}

PICKER: dict[str, Canon] = {
    "request": Canon("gateway_requests_total", C),
    "request_error": Canon("gateway_errors_total", C),
    "request_duration_seconds": Canon("gateway_e2e_s", H),
    "request_ttft_seconds": Canon("gateway_ttft_s", H),
    "request_tpot_seconds": Canon("gateway_tpot_s", H),
    "normalized_time_per_output_token_seconds": Canon("gateway_normalised_tpot_s", H),
    "input_tokens": Canon("request_input_tokens", H),
    "output_tokens": Canon("request_output_tokens", H),
    "prompt_cached_tokens": Canon("request_cached_tokens", H),
    "running_requests": Canon("gateway_running", G),
    "request_sizes": Canon("request_bytes", H),
    "response_sizes": Canon("response_bytes", H),
    "average_kv_cache_utilization": Canon("pool_kv_usage_mean", G),
    "average_queue_size": Canon("pool_waiting_mean", G),
    "ready_pods": Canon("pool_ready", G),
    "scheduler_e2e_duration_seconds": Canon("gateway_schedule_s", H),
    "plugin_duration_seconds": Canon("gateway_plugin_s", H),
    "scheduler_plugin_duration_seconds": Canon("gateway_plugin_s", H),
    "prefix_indexer_size": Canon("gateway_index_size", G),
    "prefix_indexer_hit_ratio": Canon("gateway_index_hit_share", H),
    "flow_control_queue_size": Canon("gateway_waiting", G),
}

SMG: dict[str, Canon] = {
    "router_ttft_seconds": Canon("gateway_ttft_s", H),
    "router_tpot_seconds": Canon("gateway_tpot_s", H),
    "router_request_duration_seconds": Canon("gateway_e2e_s", H),
    "router_requests": Canon("gateway_requests_total", C),
    "scheduler_queue_depth": Canon("gateway_waiting", G),
}

DCGM: dict[str, Canon] = {
    "GPU_UTIL": Canon("gpu_busy_share", G, 1e-2),
    "MEM_COPY_UTIL": Canon("gpu_copy_share", G, 1e-2),
    "FB_USED": Canon("gpu_memory_used_bytes", G, 1048576.0),
    "FB_FREE": Canon("gpu_memory_free_bytes", G, 1048576.0),
    "POWER_USAGE": Canon("gpu_power_w", G),
    "TOTAL_ENERGY_CONSUMPTION": Canon("gpu_energy_j_total", C, 1e-3),
    "GPU_TEMP": Canon("gpu_temp_c", G),
    "MEMORY_TEMP": Canon("gpu_memory_temp_c", G),
    "SM_CLOCK": Canon("gpu_sm_clock_hz", G, 1e6),
    "MEM_CLOCK": Canon("gpu_memory_clock_hz", G, 1e6),
    "GR_ENGINE_ACTIVE": Canon("gpu_engine_active_share", G),
    "SM_ACTIVE": Canon("gpu_sm_active_share", G),
    "SM_OCCUPANCY": Canon("gpu_sm_occupancy_share", G),
    "PIPE_TENSOR_ACTIVE": Canon("gpu_tensor_active_share", G),
    "DRAM_ACTIVE": Canon("gpu_dram_active_share", G),
}

TRITON: dict[str, Canon] = {
    "inference_request_success": Canon("requests_finished_total", C),
    "inference_request_failure": Canon("requests_failed_total", C),
    "inference_count": Canon("inferences_total", C),
    "inference_exec_count": Canon("steps_total", C),
    "inference_request_duration_us": Canon("request_seconds_total", C, 1e-6),
    "inference_queue_duration_us": Canon("queue_seconds_total", C, 1e-6),
    "inference_compute_infer_duration_us": Canon("compute_seconds_total", C, 1e-6),
    "inference_pending_request_count": Canon("waiting", G),
}
TRITON_LABELLED: dict[tuple[str, str], Canon] = {
    ("trt_llm_request_metrics", "scheduled"): Canon("running", G),
    ("trt_llm_request_metrics", "waiting"): Canon("waiting", G),
    ("trt_llm_request_metrics", "active"): Canon("active", G),
    ("trt_llm_kv_cache_block_metrics", "fraction"): Canon("kv_usage", G),
    ("trt_llm_kv_cache_block_metrics", "max"): Canon("kv_capacity_blocks", G),
    ("trt_llm_kv_cache_block_metrics", "used"): Canon("kv_used_blocks", G),
    ("trt_llm_kv_cache_block_metrics", "tokens_per"): Canon("block_size", G),
    ("trt_llm_kv_cache_block_metrics", "reused"): Canon("reused_blocks", G),
}

# (prefix, table), the longer prefix first
PREFIXES: tuple[tuple[re.Pattern[str], dict[str, Canon], str], ...] = tuple(
    (re.compile(pattern), table, engine)
    for pattern, table, engine in (
        (r"(?:ray_|kserve_)?vllm[:_]", VLLM, "vllm"),
        (r"(?:ray_)?sglang[:_]", SGLANG, "sglang"),
        (r"llamacpp[:_]", LLAMACPP, "llamacpp"),
        (r"tgi_", TGI, "tgi"),
        (r"trtllm[:_]", TRTLLM, "trtllm"),
        (r"dynamo_", DYNAMO, "dynamo"),
        (
            r"(?:inference_model|inference_objective|inference_pool|inference_extension|"
            r"llm_d_epp|llm_d_inference_scheduler|llm_d_router_epp)_",
            PICKER,
            "epp",
        ),
        (r"smg_", SMG, "smg"),
        (r"DCGM_FI_(?:DEV|PROF)_", DCGM, "dcgm"),
        (r"nv_", TRITON, "triton"),
    )
)
PARTS = ("_bucket", "_sum", "_count")


class Named(NamedTuple):
    name: str
    kind: str
    factor: float
    engine: str


def canonical(raw: str, labels: dict[str, str]) -> Named:
    """The canonical name, kind and factor of a sample; an unknown name stays as it is."""
    if "server" in labels and "engine" not in labels and "model_name" not in labels and raw.startswith("vllm:"):
        return Named("router_" + raw.removeprefix("vllm:"), G, 1.0, "production-stack")
    for pattern, table, engine in PREFIXES:
        found = pattern.match(raw)
        if found is None:
            continue
        known = _look_up(raw[found.end() :], table, labels)
        if known is not None:
            return Named(*known, engine)
    return Named(raw, _guess(raw), 1.0, "")


def _look_up(base: str, table: dict[str, Canon], labels: dict[str, str]) -> tuple[str, str, float] | None:
    if table is TRITON:
        for label in ("request_type", "kv_cache_block_type"):
            canon = TRITON_LABELLED.get((base, labels.get(label, "")))
            if canon:
                return canon.name, canon.kind, canon.factor
    for part in ("", *PARTS):
        stem = base.removesuffix(part) if part else base
        if part and stem == base:
            continue
        canon = table.get(stem) or table.get(stem.removesuffix("_total"))
        if canon is None:
            continue
        if canon.kind == H:
            factor = 1.0 if part in ("_bucket", "_count") else canon.factor
            return canon.name + part, H, factor
        if not part:
            return canon.name, canon.kind, canon.factor
    return None


def _guess(raw: str) -> str:
    if raw.endswith("_bucket"):
        return H
    return C if raw.endswith(("_total", "_sum", "_count")) else G


def bucket_factor(raw: str) -> float:
    """What a histogram's bucket bounds (`le`) must be multiplied with to be in the canonical unit."""
    for pattern, table, _ in PREFIXES:
        found = pattern.match(raw)
        if found and raw.endswith("_bucket"):
            canon = table.get(raw[found.end() :].removesuffix("_bucket"))
            return canon.factor if canon else 1.0
    return 1.0
