"""Colours: runs can be told apart with any kind of colour vision, text can be read on its ground."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parents[2] / "tfanalyze" / "report"
SCRIPT, STYLE = (HERE / "page.js").read_text(), (HERE / "page.css").read_text()

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as it is seen
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def linear(color: str) -> np.ndarray:
    rgb = np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of linear RGB."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def palettes() -> dict[str, list[str]]:
    return {name: re.findall(r"#[0-9a-fA-F]{6}", runs) for name, runs in re.findall(r"(light|dark): \{\s*runs: \[(.*?)\]", SCRIPT)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_first_colours_stay_apart(theme: str, vision: str) -> None:
    """Four simulated runs and the log is what a page usually shows; dash and pattern help beyond that."""
    shown = [*palettes()[theme][:4], grounds()[theme]["fg"]]
    seen = [lab(VISION[vision] @ linear(color)) for color in shown]
    for a, b in itertools.combinations(range(5), 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 25, (shown[a], shown[b])


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    light = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def grounds() -> dict[str, dict[str, str]]:
    blocks = {"light": STYLE[STYLE.index(":root {") :], "dark": STYLE[STYLE.index(':root[data-theme="dark"]') :]}
    return {name: dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text.split("}")[0])) for name, text in blocks.items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme: str) -> None:
    colors = grounds()[theme]
    for text in ("fg", "soft", "good", "bad", "unsure"):
        for ground in ("bg", "panel"):
            assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_stand_out(theme: str) -> None:
    for color in palettes()[theme]:
        assert contrast(color, grounds()[theme]["panel"]) >= 3.0, color
