"""The shapes in which metrics arrive; each reader puts its samples into a Sink and knows nothing of names or tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfanalyze.errors import FormatError
from tfanalyze.ingest import files
from tfanalyze.ingest.files import Source
from tfanalyze.ingest.formats.base import Head, documents, load_object, stem
from tfanalyze.ingest.statlines import ANCHOR, stats
from tfanalyze.ingest.times import clock_for, iso_us, number_us

Labels = Mapping[str, str]


@dataclass(slots=True)
class Sink:
    """Where samples go: series are numbered once, samples are three columns."""

    series: dict[tuple[Any, ...], int] = field(default_factory=dict)
    meta: list[tuple[str | None, str, dict[str, str], str]] = field(default_factory=list)
    ts_us: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)
    taken: int = 0
    flush: Callable[[Sink], None] | None = None
    ahead_us: int = 0  # taken off all times
    units: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def series_of(self, instance: str | None, raw: str, labels: Labels, mode: str = "name") -> int:
        """The number of a series. `mode`: name = raw is an engine's name, canon = it is canonical already."""
        key = (instance, raw, mode, *sorted(labels.items()))
        number = self.series.get(key)
        if number is None:
            number = self.series[key] = len(self.meta)
            self.meta.append((instance, raw, dict(labels), mode))
        return number

    def add(self, ts_us: int | None, series: int, value: float | None, line: int) -> None:
        if ts_us is None:
            self.rejects.append((line, "no_time"))
        elif value is None or value != value:
            self.rejects.append((line, "not_a_number"))
        elif not -(2**62) < ts_us < 2**62:
            self.rejects.append((line, "absurd_time"))
        else:
            self.ts_us.append(ts_us - self.ahead_us)
            self.index.append(series)
            self.value.append(value)
            self.taken += 1
            if len(self.value) >= 200_000 and self.flush:
                self.flush(self)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user says about metrics files."""

    tz: str = "UTC"
    year: int | None = None
    instance: str | None = None
    ts_us: int | None = None  # the time of a scrape that names none
    ahead_us: int = 0  # how far the clock was ahead


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    title: str
    sniff: Callable[[Head], bool]
    read: Callable[[Source, Settings, Sink], None]


# Prometheus text --------------------------------------------------------------------------------------------------

_SCRAPED = re.compile(r"#\s*(?:scraped at|scrape(?:d)?|time(?:stamp)?)[:= ]+(\S+(?: \d\d:\d\d:\d\d\S*)?)", re.I)


@dataclass(slots=True)
class TextParser:
    """Prometheus text and OpenMetrics, line by line; prometheus_client parses each series once, then it is known."""

    sink: Sink
    instance: str | None
    known: dict[str, int] = field(default_factory=dict)

    def line(self, text: str, ts_us: int | None, number: int, seconds: bool = False) -> bool:
        """Take one line; False if it is no sample. `seconds`: a time in the line is in s (OpenMetrics), not ms."""
        stripped = text.strip()
        if not stripped or stripped[0] == "#":
            return False
        at = stripped.rfind("}") + 1 or stripped.find(" ")
        if " # {" in stripped:
            stripped = stripped[: stripped.index(" # {")]
            at = stripped.rfind("}") + 1 or stripped.find(" ")
        rest = stripped[at:].split()
        value = number_of(rest[0]) if 1 <= len(rest) <= 2 else None
        if value is None:
            self.sink.rejects.append((number, "not_a_sample"))
            return True
        series = self.known.get(stripped[:at])
        if series is None:
            series = self._parse(stripped[:at])
            if series is None:
                self.sink.rejects.append((number, "not_a_sample"))
                return True
            self.known[stripped[:at]] = series
        if len(rest) == 2:
            stamp = number_of(rest[1])
            ts_us = None if stamp is None or not abs(stamp) < 1e15 else round(stamp * (1e6 if seconds else 1e3))
        self.sink.add(ts_us, series, value, number)
        return True

    def _parse(self, head: str) -> int | None:
        from prometheus_client.parser import text_string_to_metric_families

        try:
            for family in text_string_to_metric_families(head + " 1\n"):
                for sample in family.samples:
                    labels = dict(sample.labels)
                    name = labels.pop("__name__", sample.name)
                    instance = labels.pop("instance", None) or self.instance
                    return self.sink.series_of(instance, name, labels)
        except Exception:  # noqa: BLE001 (the parser raises many kinds on bad text)
            return None
        return None


def number_of(text: Any) -> float | None:
    """A sample's value: digits, NaN, +Inf; None for anything else."""
    if isinstance(text, bool) or text is None:
        return None
    try:
        return float(text)
    except (ValueError, TypeError):
        return None


def _sniff_text(head: Head) -> bool:
    text = head.text.lstrip()
    if text.startswith(("# HELP", "# TYPE", "# UNIT", "# scraped")):
        return True
    return bool(re.match(r"(?:[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^}]*\})?|\{__name__=[^}]*\}) [-+0-9.eEInfNa]+( \d+)?\n", text))


def read_text(source: Source, settings: Settings, sink: Sink) -> None:
    """One scrape, or several one after the other with `# scraped at` lines between them."""
    ts_us = settings.ts_us
    if ts_us is None and not _SCRAPED.search(source.text_head()):
        ts_us = _file_time(source, sink)
    parser = TextParser(sink, settings.instance or stem(source.name))
    open_metrics = False
    seconds = "# EOF" in source.text_head() or source.head.startswith(b"# UNIT")
    number = 0
    for number, text in files.lines(source):
        if text.startswith("#"):
            found = _SCRAPED.match(text)
            if found:
                ts_us = iso_us(found[1], settings.tz) or number_us(found[1])
            open_metrics = open_metrics or text.startswith("# EOF")
            continue
        if source.torn and number > source.lines and not open_metrics:
            sink.rejects.append((number, "torn_last_line"))
            return
        parser.line(text, ts_us, number, seconds)


def _file_time(source: Source, sink: Sink) -> int | None:
    name = re.search(r"(20\d\d)-?(\d\d)-?(\d\d)[T_-]?(\d\d):?-?(\d\d):?-?(\d\d)", source.name)
    if name:
        y, mo, d, h, mi, s = name.groups()
        return iso_us(f"{y}-{mo}-{d} {h}:{mi}:{s}")
    if not Path(source.path).exists():
        return None
    sink.notes.append("the scrape names no time: the file's modification time was taken (assumed)")
    return int(Path(source.path).stat().st_mtime * 1e6)


def _sniff_wrapped(head: Head) -> bool:
    return not head.is_document and head.has("ts") and bool({"text", "body", "error"} & head.keys)


def read_wrapped(source: Source, settings: Settings, sink: Sink) -> None:
    """JSON lines {ts, instance, text}: repeated scrapes; a failed one has `error` in place of `text`."""
    sink.units["ts"] = "epoch, unit by size"
    parsers: dict[str | None, TextParser] = {}
    for number, text in files.lines(source):
        row = load_object(text)
        if row is None:
            torn = source.torn and number > source.lines
            sink.rejects.append((number, "torn_last_line" if torn else "not_a_record"))
            continue
        body = row.get("text", row.get("body"))
        if not isinstance(body, str):
            sink.rejects.append((number, "failed_scrape"))
            continue
        named = row.get("instance")
        instance = (named if isinstance(named, str) else None) or settings.instance or stem(source.name)
        parser = parsers.setdefault(instance, TextParser(sink, instance))
        ts_us = number_us(row.get("ts")) or iso_us(row.get("ts"), settings.tz)
        for line in body.split("\n"):
            parser.line(line, ts_us, number)


# Prometheus API, VictoriaMetrics, AIPerf, OTLP --------------------------------------------------------------------


def _sniff_api(head: Head) -> bool:
    return head.has("status", "data") and '"resultType"' in head.text


def read_api(source: Source, settings: Settings, sink: Sink) -> None:
    """Answers of the HTTP API: query_range (evaluated at steps) and query with a range selector (raw samples)."""
    sink.units["ts"] = "s"
    sink.notes.append("query_range answers are evaluated at steps: gaps shorter than the look-back are filled")
    for document in documents(source):
        data = document.get("data")
        results = data.get("result") if isinstance(data, dict) else None
        for entry in results if isinstance(results, list) else []:
            if isinstance(entry, dict):
                _api_entry(entry, settings, sink)


def _api_entry(entry: dict[str, Any], settings: Settings, sink: Sink) -> None:
    series = _metric_series(entry.get("metric"), settings, sink)
    points = entry.get("values") if "values" in entry else [entry.get("value")]
    for point in points if isinstance(points, list) else []:
        if series is None or not isinstance(point, list) or len(point) != 2:
            sink.rejects.append((1, "not_a_sample"))
            continue
        sink.add(number_us(point[0]), series, number_of(point[1]), 1)


def _metric_series(metric: Any, settings: Settings, sink: Sink) -> int | None:
    if not isinstance(metric, dict):
        return None
    labels = {str(key): str(value) for key, value in metric.items()}
    name = labels.pop("__name__", "query")
    instance = labels.pop("instance", None) or settings.instance
    return sink.series_of(instance, name, labels)


def _sniff_victoria(head: Head) -> bool:
    return head.has("metric", "values", "timestamps")


def read_victoria(source: Source, settings: Settings, sink: Sink) -> None:
    """VictoriaMetrics /api/v1/export: one series a line, times in ms."""
    sink.units["ts"] = "ms"
    for number, text in files.lines(source):
        row = load_object(text)
        values, stamps = (row.get("values"), row.get("timestamps")) if row else (None, None)
        series = _metric_series(row.get("metric"), settings, sink) if row else None
        if series is None or not isinstance(values, list) or not isinstance(stamps, list) or len(values) != len(stamps):
            torn = source.torn and number > source.lines
            sink.rejects.append((number, "torn_last_line" if torn else "not_a_record"))
            continue
        for stamp, value in zip(stamps, values, strict=True):
            sink.add(round(stamp * 1000) if isinstance(stamp, (int, float)) and abs(stamp) < 1e15 else None, series, number_of(value), number)


def _sniff_aiperf(head: Head) -> bool:
    return head.has("endpoint_url", "timestamp_ns", "metrics")


def read_aiperf(source: Source, settings: Settings, sink: Sink) -> None:
    """AIPerf server metrics: JSON lines of {endpoint_url, timestamp_ns, metrics{name: [{labels, value | buckets}]}}."""
    sink.units["ts"] = "ns"
    for number, text in files.lines(source):
        row = load_object(text)
        if row is None or not isinstance(row.get("metrics"), dict):
            sink.rejects.append((number, "not_a_record"))
            continue
        stamp = row.get("timestamp_ns")
        ts_us = stamp // 1000 if isinstance(stamp, int) else None
        instance = settings.instance or str(row.get("endpoint_url", stem(source.name)))
        for name, entries in row["metrics"].items():
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict):
                    _aiperf_entry(entry, str(name), instance, ts_us, number, sink)


def _aiperf_entry(entry: dict[str, Any], name: str, instance: str, ts_us: int | None, line: int, sink: Sink) -> None:
    labels = {str(key): str(value) for key, value in (entry.get("labels") or {}).items()}
    if "value" in entry:
        sink.add(ts_us, sink.series_of(instance, name, labels), number_of(entry["value"]), line)
    buckets = entry.get("buckets")
    for bound, count in (buckets or {}).items() if isinstance(buckets, dict) else []:
        series = sink.series_of(instance, name + "_bucket", {**labels, "le": str(bound)})
        sink.add(ts_us, series, number_of(count), line)
    for part in ("sum", "count"):
        if part in entry:
            sink.add(ts_us, sink.series_of(instance, f"{name}_{part}", labels), number_of(entry[part]), line)


def _sniff_otlp(head: Head) -> bool:
    return head.has("resourceMetrics")


def read_otlp(source: Source, settings: Settings, sink: Sink) -> None:
    """OTLP metrics as JSON: times in ns; histograms count per bucket and are summed up here."""
    sink.units["ts"] = "ns"
    for document in documents(source):
        for resource in _dicts(document.get("resourceMetrics")):
            attributes = _attributes((resource.get("resource") or {}).get("attributes"))
            instance = attributes.get("service.instance.id") or attributes.get("service.name") or settings.instance
            for scope in _dicts(resource.get("scopeMetrics")):
                for metric in _dicts(scope.get("metrics")):
                    _otlp_metric(metric, instance, sink)


def _otlp_metric(metric: dict[str, Any], instance: str | None, sink: Sink) -> None:
    name = str(metric.get("name", "")).replace(".", "_")
    for kind in ("gauge", "sum", "histogram"):
        body = metric.get(kind)
        if not isinstance(body, dict):
            continue
        if body.get("aggregationTemporality") in (1, "AGGREGATION_TEMPORALITY_DELTA"):
            sink.notes.append(f"{name} comes as deltas: kept as they are under {name}_delta")
            name += "_delta"
        for point in _dicts(body.get("dataPoints")):
            stamp = number_of(point.get("timeUnixNano"))
            nanoseconds = str(point.get("timeUnixNano")).strip()  # a string of digits in OTLP's JSON: a float would lose the last ones
            ts_us = None if stamp is None or not abs(stamp) < 1e20 else (int(nanoseconds) if nanoseconds.isdigit() else int(stamp)) // 1000
            labels = _attributes(point.get("attributes"))
            if kind != "histogram":
                value = number_of(point.get("asDouble", point.get("asInt")))
                sink.add(ts_us, sink.series_of(instance, name, labels), value, 1)
            else:
                _otlp_histogram(point, name, labels, instance, ts_us, sink)


def _otlp_histogram(
    point: dict[str, Any], name: str, labels: dict[str, str], instance: str | None, ts_us: int | None, sink: Sink
) -> None:
    bounds = [str(bound) for bound in point.get("explicitBounds") or []] + ["+Inf"]
    total = 0.0
    for bound, count in zip(bounds, point.get("bucketCounts") or [], strict=False):
        total += number_of(count) or 0.0
        sink.add(ts_us, sink.series_of(instance, name + "_bucket", {**labels, "le": bound}), total, 1)
    for part in ("sum", "count"):
        if part in point:
            sink.add(ts_us, sink.series_of(instance, f"{name}_{part}", labels), number_of(point[part]), 1)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _attributes(value: Any) -> dict[str, str]:
    found = {}
    for item in _dicts(value):
        inner = item.get("value")
        if isinstance(inner, dict) and inner:
            found[str(item.get("key"))] = str(next(iter(inner.values())))
    return found


# CSV, Parquet, logs -----------------------------------------------------------------------------------------------

TIME_COLUMNS = ("timestamp_sec", "timestamp_s", "timestamp_ms", "timestamp_us", "timestamp_ns", "timestamp", "time", "ts", "ts_us", "t")
CSV_NAMES: dict[str, tuple[str, float]] = {
    "kv_cache_usage_pct": ("kv_usage", 0.01), "kv_cache_pct": ("kv_usage", 0.01), "kv_usage": ("kv_usage", 1.0),
    "cpu_kv_cache_usage_pct": ("host_kv_usage", 0.01), "running": ("running", 1.0), "waiting": ("waiting", 1.0),
    "prompt_throughput": ("prompt_tok_s", 1.0), "gen_throughput": ("generation_tok_s", 1.0),
    "interval_throughput_tok_per_sec": ("generation_tok_s", 1.0), "request_success_total": ("requests_finished_total", 1.0),
    "interval_cache_hit_rate_pct": ("prefix_hit_share", 0.01), "tx_pci_mb_per_sec": ("pci_tx_bytes_s", 1e6),
    "rx_pci_mb_per_sec": ("pci_rx_bytes_s", 1e6), "cumulative_tx_gb": ("pci_tx_bytes_total", 1e9),
    "cumulative_rx_gb": ("pci_rx_bytes_total", 1e9),
}  # fmt: skip
_CELL = re.compile(r"^\s*([-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(%|ms|us|µs|ns|s|K|k|M|Mil|B|Bil|KiB|MiB|GiB)?\s*$")
_CELL_UNITS = {
    None: 1.0, "": 1.0, "%": 0.01, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "s": 1.0, "K": 1e3, "k": 1e3, "M": 1e6,
    "Mil": 1e6, "B": 1e9, "Bil": 1e9, "KiB": 1024.0, "MiB": 1048576.0, "GiB": 1073741824.0,
}  # fmt: skip


def _time_column(header: list[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(header)}
    return next((lower[name] for name in TIME_COLUMNS if name in lower), None)


def _sniff_csv(head: Head) -> bool:
    names = {name.lower() for name in head.header}
    requests = {"contexttokens", "request tokens", "prompt_tokens", "input_tokens", "input_num_tokens", "ttft_ms"}
    return bool(head.header) and not ANCHOR.search(head.text) and _time_column(head.header) is not None and not names & requests


def read_csv(source: Source, settings: Settings, sink: Sink) -> None:
    """CSV with a time column: a column a series (dashboards), or columns metric/name and value (long form)."""
    rows = csv.reader((text.replace("\r", " ") for _, text in files.lines(source) if not text.startswith("sep=")))
    header = [name.strip() for name in next(rows, [])]
    time = _time_column(header)
    if time is None:
        raise FormatError("has no time column", source.name, f"name one of {', '.join(TIME_COLUMNS)}")
    sink.units["ts"] = time
    columns = _csv_columns(header, time, settings, source, sink)
    number = 1
    while True:
        number += 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error:
            sink.rejects.append((number, "not_a_record"))
            continue
        if len(cells) != len(header):
            torn = source.torn and number > source.lines
            sink.rejects.append((number, "torn_last_line" if torn else "wrong_number_of_columns"))
            continue
        columns(dict(zip(header, cells, strict=True)), number)


def _csv_columns(
    header: list[str], time: str, settings: Settings, source: Source, sink: Sink
) -> Callable[[dict[str, str], int], None]:
    lower = {name.lower(): name for name in header}
    name_column = lower.get("metric") or lower.get("metric_name") or lower.get("name")
    value_column = lower.get("value")
    instance_column = lower.get("instance")
    default = settings.instance or stem(source.name)
    plain = {time, name_column, value_column, instance_column}
    labels = [n for n in header if n.lower().endswith("_id") or n.lower() in ("gpu", "device", "pod", "engine", "model_name", "le")]

    def stamp(row: dict[str, str]) -> int | None:
        text = row[time].strip()
        return number_us(text) if re.fullmatch(r"-?[\d.]+(?:[eE][+-]?\d+)?", text) else iso_us(text, settings.tz)

    def long_form(row: dict[str, str], number: int) -> None:
        tags = {n: row[n] for n in header if n not in plain and row[n] != ""}
        instance = row[instance_column] if instance_column else default
        series = sink.series_of(instance, row[name_column or ""], tags)
        sink.add(stamp(row), series, _cell(row[value_column or ""]), number)

    def wide(row: dict[str, str], number: int) -> None:
        tags = {n: row[n] for n in labels}
        ts_us = stamp(row)
        for name in header:
            if name in plain or name in labels or name == "relative_time_sec" or row[name].strip() == "":
                continue
            raw, factor = CSV_NAMES.get(name, ("", 1.0))
            instance = row[instance_column] if instance_column else default
            series = sink.series_of(instance, raw or name, tags, "canon" if raw else "guess")
            value = _cell(row[name])
            sink.add(ts_us, series, None if value is None else value * factor, number)

    return long_form if name_column and value_column else wide


def _cell(text: str) -> float | None:
    """A number, also one that a dashboard formatted (41.2%, 310 ms, 1.2 K)."""
    found = _CELL.match(text)
    if not found:
        return number_of(text)
    return float(found[1].replace(",", "")) * _CELL_UNITS[found[2]]


def _sniff_log(head: Head) -> bool:
    return not head.rows and (bool(ANCHOR.search(head.text)) or _log_like(head))


def _log_like(head: Head) -> bool:
    text = head.text
    return not head.rows and _time_column(head.header) is None and ("vLLM API server" in text or "vllm" in text[:4000].lower() or "sglang" in text[:20000].lower()) and (
        bool(re.search(r"(?:INFO|WARNING) \d\d-\d\d \d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text))
    )


def read_log(source: Source, settings: Settings, sink: Sink) -> None:
    """The periodic statistics lines of vLLM and SGLang logs."""
    clock = clock_for(source.path, source.text_head(), settings.tz, settings.year)
    instance = settings.instance or stem(source.name)
    for number, text in files.lines(source):
        if "throughput" not in text and " batch" not in text and "hit rate" not in text and "SpecDecoding" not in text:
            continue
        for stat in stats(text, clock):
            labels = {"rank": stat.rank} if stat.rank else {}
            pid = re.search(r"pid=(\d+)", text[:200])
            if pid:
                labels["pid"] = pid[1]
            if stat.batch:
                labels["batch"] = stat.batch
            for name, value in stat.values.items():
                sink.add(stat.time_us, sink.series_of(instance, name, labels, "canon"), value, number)
    sink.units["ts"] = f"log header, resolution {clock.resolution_us} us, zone {settings.tz}"
    if clock.note:
        sink.notes.append(clock.note)


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("prometheus", "Prometheus text or OpenMetrics, one scrape or several", _sniff_text, read_text),
        Shape("scrapes", "JSON lines of scrapes {ts, instance, text}", _sniff_wrapped, read_wrapped),
        Shape("query_range", "Prometheus HTTP API answer", _sniff_api, read_api),
        Shape("victoriametrics", "VictoriaMetrics export (JSON lines)", _sniff_victoria, read_victoria),
        Shape("aiperf_server", "AIPerf server metrics (JSON lines)", _sniff_aiperf, read_aiperf),
        Shape("otlp_metrics", "OTLP metrics (JSON)", _sniff_otlp, read_otlp),
        Shape("metrics_csv", "CSV with a time column (dashboards, time series)", _sniff_csv, read_csv),
        Shape("stat_lines", "statistics lines in vLLM and SGLang logs", _sniff_log, read_log),
    )
}
