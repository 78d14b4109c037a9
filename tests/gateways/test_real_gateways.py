"""The exported config, loaded by the real program: from where requests land, its parameters took effect."""

from __future__ import annotations

import collections
import concurrent.futures
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gateways.engines import Engine, chat, free_port, running, started
from tfanalyze.config import EngineLimits, Fleet, Pool, Site, SloClass
from tfanalyze.export import export
from tfanalyze.export.argv import tokens
from tfanalyze.replay.policies import load_policy
from tfanalyze.testing import Decider, make_request, make_sites

pytestmark = pytest.mark.gateway
CLASSES = (SloClass("interactive", ttft_s=1.0), SloClass("batch", e2e_s=100.0), SloClass("offline"))
Find = Callable[[str, str], str]


def written(
    target: str,
    spec: str,
    settings: dict[str, float | str],
    engines: Sequence[Engine],
    out: Path,
    sites: int = 1,
) -> Path:
    """Export for a fleet of the given engines; the first ones are at site 0."""
    pools = tuple(
        Pool(e.name, site=f"site{k % sites}", model="m", engine=EngineLimits(max_num_seqs=e.slots))
        for k, e in enumerate(engines)
    )
    fleet = Fleet(pools, sites=tuple(Site(f"site{k}") for k in range(sites)))
    result = export(
        target,
        load_policy(spec, settings),
        out=out,
        fleet=fleet,
        classes=CLASSES,
        endpoints={e.name: e.url for e in engines},
    )
    return out / str(result["files"][0])


def command(script: Path, program: str, port: int, words: int, extra: Sequence[str] = ()) -> list[str]:
    """The exported script's own arguments, with the program's path and ports put in."""
    args = tokens(script.read_text(), str(script))[1 + words :]
    ports = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--prometheus-host",
        "127.0.0.1",
        "--prometheus-port",
        str(free_port()),
    ]
    return [program, *args, *ports, "--worker-startup-check-interval", "1", *extra]


def many(url: str, jobs: Sequence[tuple[str, dict[str, str]]], workers: int) -> list[tuple[int, str]]:
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda job: chat(url, job[0], job[1], timeout_s=60.0), jobs))


def warm(url: str) -> None:
    """Until the workers are registered."""
    for _ in range(100):
        if chat(url, "warm")[0] == 200:
            return
        time.sleep(0.2)
    raise AssertionError("no worker is registered after 20 s")


# --- Dynamo -----------------------------------------------------------------------------------------------------------

PARSE = """
import json, sys
from dynamo._core import KvRouterConfig
KvRouterConfig.from_json(json.dumps({"router_policy_config": sys.argv[1]}))
print("accepted")
"""


def parsed(program: Find, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("dynamo", "python"), "-c", PARSE, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("kind", ["dynamo-default-cost-fn", "dynamo-two-tier-cost-fn"])
def test_dynamos_own_parser_takes_the_policy_file(program: Find, tmp_path: Path, kind: str) -> None:
    settings: dict[str, float | str] = {
        "dynamo.selection": kind,
        "dynamo.overlap_score_credit": 0.85,
        "dynamo_queues.quantum_0": 8192,
    }
    path = written("dynamo", "dynamo+dynamo_queues", settings, [Engine("a")], tmp_path)
    done = parsed(program, path)
    assert done.stdout.strip() == "accepted", done.stderr[-1500:]
    path.write_text(path.read_text().replace("quantum:", "quantumm:"))
    done = parsed(program, path)
    assert done.returncode != 0 and "quantumm" in done.stderr


# --- Envoy ------------------------------------------------------------------------------------------------------------


def envoy_config(path: Path, port: int) -> Path:
    text = path.read_text().replace("0.0.0.0", "127.0.0.1").replace("port_value: 8080", f"port_value: {port}")
    path.write_text(text.replace("port_value: 9901", f"port_value: {free_port()}"))
    return path


def test_envoy_validates_the_bootstrap(program: Find, tmp_path: Path) -> None:
    envoy = program("envoy", "envoy")
    path = written(
        "envoy",
        "envoy_lb+envoy+envoy_breakers",
        {"envoy.priority_1": 1},
        [Engine("a"), Engine("b")],
        tmp_path,
        sites=2,
    )
    done = subprocess.run(
        [envoy, "--mode", "validate", "-c", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0 and "OK" in done.stdout + done.stderr, done.stderr[-1500:]
    path.write_text(path.read_text().replace("max_requests:", "max_request:"))
    done = subprocess.run(
        [envoy, "--mode", "validate", "-c", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0


def test_envoy_shares_by_site_weight_and_breaks_by_class(program: Find, tmp_path: Path) -> None:
    settings: dict[str, float | str] = {
        "envoy.weight_0": 3,
        "envoy.weight_1": 1,
        "envoy_breakers.high_max_requests": 64,
        "envoy_breakers.default_max_requests": 4,
    }
    with running([Engine("a"), Engine("b")]) as engines:
        port = free_port()
        path = envoy_config(
            written("envoy", "envoy_lb+envoy+envoy_breakers", settings, engines, tmp_path, sites=2), port
        )
        url = f"http://127.0.0.1:{port}"
        argv = [program("envoy", "envoy"), "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id"]
        with started(argv, tmp_path / "log", url + "/health"):
            landed = collections.Counter(name for _, name in (chat(url) for _ in range(80)))
            assert 54 <= landed["a"] <= 66 and landed["a"] + landed["b"] == 80
            for engine in engines:
                engine.delay_s = 1.0
            quick = [("x", {"x-slo-class": "interactive"})] * 20
            slow = [("x", {"x-slo-class": "batch"})] * 20
            codes = [code for code, _ in many(url, [*quick, *slow], 40)]
            assert codes[:20] == [200] * 20
            through = codes[20:].count(
                200
            )  # Envoy's limits are not exact: each of the two hosts may have one more
            assert 4 <= through <= 6 and codes[20:].count(503) == 20 - through


@pytest.mark.parametrize(
    ("settings", "near"),
    [
        ({"envoy.priority_1": 1, "envoy.overprovisioning_factor": 120}, 0.6),  # half of level 0 is healthy: 50 % * 1.2
        ({"envoy.priority_1": 1, "envoy.overprovisioning_factor": 200}, 1.0),  # as much may fail as has failed: nothing spills
        ({"envoy.weight_0": 3, "envoy.weight_1": 1, "envoy.overprovisioning_factor": 100}, 0.6),  # 3 * 0.5 against 1
    ],
)
def test_envoy_spills_as_the_simulated_policy(
    program: Find, tmp_path: Path, settings: dict[str, float | str], near: float
) -> None:
    """Two hosts a site; one of the first site fails its health check."""
    n = 300
    policy = load_policy("envoy_lb+envoy", settings)
    decider = Decider(policy.site, n_sites=2)
    sites = make_sites(2, instances=[1, 2], configured=[2, 2])
    simulated = sum(decider.choose(sites, make_request()) == 0 for _ in range(4000)) / 4000
    assert abs(simulated - near) < 0.03
    with running([Engine(name) for name in "abcd"]) as engines:  # a and c are at the first site
        engines[0].healthy = False
        port = free_port()
        path = envoy_config(written("envoy", "envoy_lb+envoy+envoy_breakers", settings, engines, tmp_path, sites=2), port)
        url = f"http://127.0.0.1:{port}"
        argv = [program("envoy", "envoy"), "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id"]
        with started(argv, tmp_path / "log", url + "/health"):
            time.sleep(7.0)  # two health checks have failed
            landed = collections.Counter(name for _, name in (chat(url) for _ in range(n)))
    assert landed["a"] == 0 and sum(landed.values()) == n
    print(f"\nnear site {landed['c'] / n:.1%}, simulated {simulated:.1%}")
    assert abs(landed["c"] / n - simulated) < 4 * (0.25 / n) ** 0.5 * (0 < near < 1) + 0.01


# --- smg --------------------------------------------------------------------------------------------------------------

SMG_EXTRA = [
    "--backend",
    "vllm",
    "--load-monitor-interval",
    "1",
    "--disable-tokenizer-autoload",
    "--shutdown-grace-period-secs",
    "1",
]


def test_smg_keeps_the_class_slots(program: Find, tmp_path: Path) -> None:
    settings: dict[str, float | str] = {
        "smg_priority.interactive_reserved_per_slot": 0.5, "smg_priority.default_reserved_per_slot": 0.0, "smg_priority.bulk_queue_size": 3,
        "smg_priority.bulk_queue_timeout_secs": 30,
    }  # fmt: skip
    with running([Engine("a", delay_s=1.5)]) as engines:
        script, port = written("smg", "smg+smg_priority", settings, engines, tmp_path), free_port()
        url = f"http://127.0.0.1:{port}"
        argv = command(script, program("smg", "smg"), port, 1, SMG_EXTRA)
        with started(argv, tmp_path / "log", url + "/health") as log:
            warm(url)
            bulk = [(f"b{k}", {"x-smg-priority": "bulk"}) for k in range(60)]
            quick = [(f"i{k}", {"x-smg-priority": "interactive"}) for k in range(30)]
            codes = [code for code, _ in many(url, [*bulk, *quick], 90)]
            assert "priority scheduler enabled" in log.read_text().lower()
            assert codes[60:] == [200] * 30
            through = codes[:60].count(
                200
            )  # half of the 64 slots, and three queued; one may still be held by the last call
            assert 33 <= through <= 35 and codes[:60].count(429) == 60 - through


@pytest.mark.parametrize(("tokens_each", "on_full"), [(1, 0), (1024, 2)])
def test_smgs_least_load_is_its_formula(
    program: Find, tmp_path: Path, tokens_each: int, on_full: int
) -> None:
    """KV use 0.75 costs 5 * 3 = 15 s; a request sent since the poll costs tokens / 500 tok/s at the others."""
    with running(
        [Engine("a", kv_used_share=0.75), Engine("b", kv_used_share=0.0), Engine("c", kv_used_share=0.0)]
    ) as engines:
        settings: dict[str, float | str] = {
            "smg.least_load_kv_pressure_weight": 5.0,
            "smg.least_load_mean_prefill_tokens": tokens_each,
        }
        script, port = written("smg", "smg", settings, engines, tmp_path), free_port()
        url = f"http://127.0.0.1:{port}"
        extra = [*SMG_EXTRA[:2], "--load-monitor-interval", "5", *SMG_EXTRA[4:]]
        with started(
            command(script, program("smg", "smg"), port, 1, extra), tmp_path / "log", url + "/health"
        ):
            warm(url)
            time.sleep(6.0)  # a poll of the load has been
            landed = collections.Counter(name for _, name in (chat(url, f"t{k}") for k in range(20)))
            # 15 s / (1024 / 500) = 7.3: eight each at b and c, then four more in turn, some of them at a
            assert landed["a"] == 0 if on_full == 0 else 1 <= landed["a"] <= 4


def test_smg_refuses_what_we_refuse(program: Find, tmp_path: Path) -> None:
    script = written("smg", "smg+smg_priority", {}, [Engine("a")], tmp_path)
    bad = (tmp_path / "smg-priority.yaml").read_text().replace("queue_size", "queue_sizes", 1)
    (tmp_path / "smg-priority.yaml").write_text(bad)
    argv = command(script, program("smg", "smg"), free_port(), 1, SMG_EXTRA)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert done.returncode != 0 and "queue_sizes" in done.stdout + done.stderr


# --- the SGLang line --------------------------------------------------------------------------------------------------


def test_sglang_router_follows_the_cache_until_the_load_is_uneven(program: Find, tmp_path: Path) -> None:
    prefix = "the same long system prompt " * 40
    with running([Engine("a"), Engine("b")]) as engines:
        settings: dict[str, float | str] = {
            "sglang.cache_threshold": 0.5,
            "sglang.balance_abs_threshold": 4,
            "sglang.balance_rel_threshold": 1.1,
        }
        script, port = written("sglang", "sglang+router_queue", settings, engines, tmp_path), free_port()
        url = f"http://127.0.0.1:{port}"
        argv = command(script, program("sglang", "python"), port, 3, ["--worker-startup-timeout-secs", "20"])
        argv[1:1] = ["-m", "sglang_router.launch_router"]
        with started(
            argv,
            tmp_path / "log",
            url + "/health",
            env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"},
        ):
            alone = {chat(url, prefix + str(k))[1] for k in range(12)}
            assert len(alone) == 1  # one after the other: always where the prefix is
            for engine in engines:
                engine.delay_s = 1.5
            together = collections.Counter(
                name for _, name in many(url, [(prefix + f"x{k}", {}) for k in range(24)], 24)
            )
            assert set(together) == {"a", "b"}  # more than 4 apart: the load decides
            assert abs(together["a"] - together["b"]) <= 8


def test_sglang_router_refuses_what_we_refuse(program: Find, tmp_path: Path) -> None:
    script = written("sglang", "sglang", {}, [Engine("a")], tmp_path)
    script.write_text(script.read_text().replace("--cache-threshold 0.3", "--cache-threshold 2.0"))
    argv = command(script, program("sglang", "python"), free_port(), 3)
    argv[1:1] = ["-m", "sglang_router.launch_router"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and "cache_threshold" in (done.stdout + done.stderr).replace("-", "_").lower()


@pytest.mark.parametrize(("policy", "spread"), [("round_robin", True), ("cache_aware", False)])
def test_vllm_router_routes_by_the_exported_policy(
    program: Find, tmp_path: Path, policy: str, spread: bool
) -> None:
    prefix = "the same long system prompt " * 40
    with running([Engine("a"), Engine("b")]) as engines:
        script, port = (
            written("vllm-router", "vllm_router", {"vllm_router.policy": policy}, engines, tmp_path),
            free_port(),
        )
        url = f"http://127.0.0.1:{port}"
        with started(
            command(script, program("vllm-router", "vllm-router"), port, 1), tmp_path / "log", url + "/health"
        ):
            landed = collections.Counter(name for _, name in (chat(url, prefix + str(k)) for k in range(12)))
            assert landed == {"a": 6, "b": 6} if spread else len(landed) == 1


# --- LiteLLM ----------------------------------------------------------------------------------------------------------


def test_litellm_shares_by_weight(program: Find, tmp_path: Path) -> None:
    with running([Engine("a"), Engine("b")]) as engines:
        path = written(
            "litellm", "litellm", {"litellm.weight_0": 9, "litellm.weight_1": 1}, engines, tmp_path, sites=2
        )
        port, key = free_port(), "sk-test"
        env = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MASTER_KEY": key,
            "ENGINE_API_KEY": "x",
            "NO_PROXY": "127.0.0.1",
        }
        argv = [
            program("litellm", "litellm"),
            "--config",
            str(path),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        url = f"http://127.0.0.1:{port}"
        with started(argv, tmp_path / "log", url + "/health/liveliness", env=env, wait_s=120.0):
            for k in range(60):
                assert chat(url, f"t{k}", {"Authorization": f"Bearer {key}"})[0] == 200
        assert engines[0].served + engines[1].served == 60
        assert 44 <= engines[0].served <= 60  # 54 expected; one draw in a thousand is below


# --- Ray Serve --------------------------------------------------------------------------------------------------------

RAY = """
import inspect, json
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter as R
known = inspect.signature(R.initialize_state).parameters
print(json.dumps({name: str(p.default) for name, p in known.items()}))
"""


def test_ray_serves_router_knows_the_arguments_and_defaults(program: Find, tmp_path: Path) -> None:
    from tfanalyze.export import yamltext
    from tfanalyze.export.ray_serve import KNOWN

    settings: dict[str, float | str] = {"ray_serve.imbalanced_threshold": 6}
    path = written("ray-serve", "ray_serve", settings, [Engine("a")], tmp_path)
    done = subprocess.run(
        [program("ray-serve", "python"), "-c", RAY], capture_output=True, text=True, check=True, timeout=120
    )
    known: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    kwargs = yamltext.plain(yamltext.load(path.read_text(), ""))["deployment_config"][
        "request_router_config"
    ]["request_router_kwargs"]
    assert kwargs["imbalanced_threshold"] == 6 and set(kwargs) <= set(known)
    assert set(known) >= KNOWN
    assert float(known["match_rate_threshold"]) == load_policy("ray_serve").instance.match_rate_threshold
    assert known["imbalanced_threshold"] == "inf"


@pytest.mark.parametrize(("threshold", "sticky"), [(0.3, True), (1.0, False)])
def test_ray_serves_router_follows_the_prefix(program: Find, tmp_path: Path, threshold: float, sticky: bool) -> None:
    """Serve itself, two replicas, the exported arguments: ray.serve.llm's front end would need vLLM, its router does not."""
    from tfanalyze.export import yamltext

    settings: dict[str, float | str] = {"ray_serve.imbalanced_threshold": 6, "ray_serve.match_rate_threshold": threshold}
    path = written("ray-serve", "ray_serve", settings, [Engine("a"), Engine("b")], tmp_path)
    place = yamltext.plain(yamltext.load(path.read_text(), ""))["deployment_config"]["request_router_config"]
    kwargs = tmp_path / "kwargs.json"
    kwargs.write_text(json.dumps(place["request_router_kwargs"]))
    families = [letter * 300 for letter in "abcd"]
    prompts = [families[k % 4] + str(k) for k in range(40)]
    script = Path(__file__).with_name("ray_router.py")
    done = subprocess.run(
        [program("ray-serve", "python"), str(script), str(kwargs)], input=json.dumps(prompts), capture_output=True, text=True,
        check=False, timeout=180, cwd=tmp_path,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("SERVED ")]
    assert lines, done.stderr[-1500:]
    found = json.loads(lines[0].removeprefix("SERVED "))
    homes = [set(found[k::4]) for k in range(4)]
    assert len(set(found)) == 2
    assert all(len(home) == 1 for home in homes) if sticky else any(len(home) == 2 for home in homes)
