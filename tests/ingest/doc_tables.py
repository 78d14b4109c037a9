"""The generated tables of docs/formats.md. `python -m tests.ingest.doc_tables` from the repository root rewrites them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.ingest.samples import SAMPLES
from tfanalyze.ingest import explain_file, ingest_logs, ingest_metrics
from tfanalyze.ingest.formats import FORMATS
from tfanalyze.ingest.judge import REASONS, REPAIRS
from tfanalyze.ingest.names import PREFIXES
from tfanalyze.ingest.shapes import SHAPES
from tfanalyze.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "formats.md"
# pattern below the data folder -> logs or metrics
REAL_LOGS = (
    "llamacpp_two_instances/*/requests.jsonl", "mooncake/*.jsonl", "azure_llm_2023/*.csv", "blis/eval/*/*/traces.json",
    "blis/eval/*/*/guidellm-results.json.gz", "aibrix/ps_experiment_*/*.csv", "aiperf_example/profile_export.jsonl",
    "inferencex/*/*/metrics_client_metrics.csv*", "inferencex/sglang/sglang_mtp_profile*.json", "llmservingsim/bench/*/*/vllm/requests.jsonl",
    "llmservingsim/workloads/*.jsonl", "vtc_artifact/*.jsonl", "litellm_agentic/*.jsonl", "litellm_agentic/native_row_example.json",
    "lmcache_agent_trace/*.jsonl.gz", "gateway_logs/production_stack/*.log", "engine_logs/llumnix/instance_20038.out.gz",
    "dynamo/replay/tests/data/*.jsonl", "dynamo/replay/tests/e2e/configs/unified_cli/fixtures/traces/[!ad]*.jsonl",
    "dynamo/replay/tests/e2e/configs/unified_cli/fixtures/traces/dynamo-*.jsonl",
    "dynamo/replay/tests/e2e/configs/unified_cli/fixtures/traces/agentic-*.jsonl", "inference_perf/examples/trace-replay/trace.csv", "servegen/reason/deepseek-r1/chunk-1-trace.csv",
)  # fmt: skip
REAL_METRICS = (
    "llamacpp_two_instances/*/metrics-i*.prom.jsonl", "prometheus_dumps/*.prom", "inferencex/*/*/metrics_server_metrics.csv*",
    "inferencex/*/*/metrics_gpu_transfer.csv*", "inferencex/*/*/server*.log.gz", "inferencex/sglang/*.log.gz",
    "llmservingsim/bench/*/*/vllm/timeseries.csv", "blis/eval/*/*/vllm.log", "engine_logs/llumnix/instance_*",
)  # fmt: skip


def data_folder() -> Path:
    return Path(os.environ.get("TFANALYZE_DATA", ROOT / ".." / "shared" / "data")).resolve()


def formats() -> list[str]:
    """Each log format with the canonical columns that its sample fills."""
    filled: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for sample in SAMPLES:
            path = Path(folder) / sample.file
            for name, text in {sample.file: sample.text, **sample.beside}.items():
                (Path(folder) / name).write_text(text)
            names = [row["column"] for row in explain_file(path, **sample.options)["columns"]]
            filled[sample.name] = [*filled.get(sample.name, []), *(n for n in names if n not in filled.get(sample.name, []))]
    lines = ["| format | what | vantage | fills |", "| --- | --- | --- | --- |"]
    for form in FORMATS.values():
        lines.append(f"| `{form.name}` | {form.title} | {form.vantage} | {', '.join(filled[form.name])} |")
    return lines


def shapes() -> list[str]:
    return ["| format | what |", "| --- | --- |", *(f"| `{shape.name}` | {shape.title} |" for shape in SHAPES.values())]


def names() -> list[str]:
    lines = ["| engine | raw name | canonical | kind | times |", "| --- | --- | --- | --- | --- |"]
    for _, table, engine in PREFIXES:
        for raw, canon in table.items():
            lines.append(f"| {engine} | {raw} | `{canon.name}` | {canon.kind} | {canon.factor:g} |")
    return lines


def rules() -> list[str]:
    lines = ["| reason or rule | what it means |", "| --- | --- |"]
    lines += [f"| `{name}` | rejected: {what} |" for name, what in REASONS.items()]
    return lines + [f"| `{name}` | repaired: {what} |" for name, what in REPAIRS.items()]


def real(pattern: str, is_log: bool, data: Path) -> str | None:
    """One line of the table of real files, or None where there are none."""
    paths = sorted(data.glob(pattern))
    if not paths:
        return None
    with Workspace.open(":memory:") as db:
        result = (ingest_logs if is_log else ingest_metrics)(paths, db=db)
    totals, forms = result["totals"], sorted({file["format"] for file in result["files"]})
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(totals["reasons"].items())) or "-"
    skipped = f" (+ {totals['skipped']} without any)" if totals["skipped"] else ""
    return (
        f"| `{pattern}` | {', '.join(forms)} | {totals['files']}{skipped} | {totals['rows']} | {totals['taken']} | {totals['rejected']} | {reasons} |"
    )


def real_files(data: Path) -> list[str]:
    lines = ["| files | format | files | records | taken | rejected | why |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for patterns, is_log in ((REAL_LOGS, True), (REAL_METRICS, False)):
        lines += [line for pattern in patterns if (line := real(pattern, is_log, data))]
    return lines


def replace(page: str, name: str, lines: list[str]) -> str:
    start, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    before, rest = page.split(start)
    return before + start + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1]


def section(page: str, name: str) -> list[str]:
    return page.split(f"<!-- {name}: generated -->")[1].split(f"<!-- {name}: end -->")[0].strip().split("\n")


if __name__ == "__main__":
    text = PAGE.read_text()
    for title, made in (("formats", formats()), ("shapes", shapes()), ("rules", rules()), ("names", names()), ("real", real_files(data_folder()))):
        text = replace(text, title, made)
    PAGE.write_text(text)
