"""Views over the workspace's tables, part of its file: any DuckDB client sees them. docs/sql.md has every column."""

from __future__ import annotations

VIEWS: dict[str, str] = {
    # what the logs say, durations in seconds
    "observed": """
SELECT request_id, make_timestamp(arrival_us) AS arrival, arrival_us, model, site, instance, tenant, slo_class, priority,
  session_id, turn, attempt_no, vantage, input_tokens, cached_tokens, output_tokens, max_tokens, queue_us / 1e6 AS queue_s,
  ttft_us / 1e6 AS ttft_s, e2e_us / 1e6 AS e2e_s,
  CASE WHEN output_tokens > 1 THEN (e2e_us - ttft_us) / 1e6 / (output_tokens - 1) END AS tpot_s,
  status, finish_reason, s.path AS file, source_line, r.provenance
FROM requests r LEFT JOIN sources s USING (source_id)""",
    # every simulated request beside the first row that the logs have of it
    "request_pairs": """
SELECT m.run, m.request_id, coalesce(m.slo_class, o.slo_class) AS slo_class, make_timestamp(m.arrival_us) AS arrival,
  m.input_tokens, m.output_tokens, o.instance AS observed_instance, m.instance, o.cached_tokens AS observed_hit_tokens,
  m.hit_tokens, o.ttft_s AS observed_ttft_s, m.ttft_s, m.ttft_s - o.ttft_s AS ttft_change_s, o.tpot_s AS observed_tpot_s,
  m.tpot_s, o.e2e_s AS observed_e2e_s, m.e2e_s, m.e2e_s - o.e2e_s AS e2e_change_s, o.status AS observed_status, m.status,
  m.reason, m.attained, m.attempts, m.preemptions
FROM (SELECT * REPLACE (nullif(ttft_s, 'nan') AS ttft_s, nullif(tpot_s, 'nan') AS tpot_s, nullif(e2e_s, 'nan') AS e2e_s)
  FROM simulated) m
LEFT JOIN (SELECT * FROM observed QUALIFY
  row_number() OVER (PARTITION BY request_id ORDER BY attempt_no NULLS FIRST, arrival_us, source_line) = 1) o USING (request_id)""",
    # one row a run and class
    "run_summary": """
SELECT run, slo_class, count(*) AS requests, avg(attained::INT) AS attainment,
  sum(output_tokens) AS offered_output_tokens, sum(delivered_tokens) AS delivered_tokens,
  coalesce(sum(output_tokens) FILTER (attained), 0) AS effective_tokens,
  quantile_cont(ttft_s, 0.5) FILTER (NOT isnan(ttft_s)) AS ttft_p50_s,
  quantile_cont(ttft_s, 0.95) FILTER (NOT isnan(ttft_s)) AS ttft_p95_s,
  quantile_cont(e2e_s, 0.95) FILTER (NOT isnan(e2e_s)) AS e2e_p95_s,
  avg((reason IS NOT DISTINCT FROM 'shed')::INT) AS shed_share, sum(preemptions) AS preemptions
FROM simulated GROUP BY run, slo_class""",
    # one row a run and minute of arrival
    "run_minutes": """
SELECT run, make_timestamp(arrival_us - arrival_us % 60000000) AS minute, count(*) AS requests,
  sum(output_tokens) / 60.0 AS offered_tok_s, coalesce(sum(output_tokens) FILTER (attained), 0) / 60.0 AS goodput_tok_s,
  avg(attained::INT) AS attainment, quantile_cont(ttft_s, 0.95) FILTER (NOT isnan(ttft_s)) AS ttft_p95_s
FROM simulated GROUP BY run, minute""",
    # engine metrics by canonical name
    "metric_samples": """
SELECT make_timestamp(ts_us) AS ts, instance, name, value, labels, raw_name FROM metrics""",
}


def create_views(temporary: bool = False) -> str:
    """The SQL that makes them all; temporary ones also serve a workspace that is older than they are."""
    kind = "TEMP VIEW" if temporary else "VIEW"
    return "".join(f"CREATE OR REPLACE {kind} {name} AS {body};\n" for name, body in VIEWS.items())
