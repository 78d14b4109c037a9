"""The page in a real browser: no error, no request, tabs by mouse and keyboard, hover, theme, print. Keeps screenshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tfanalyze.report import report

from .browser import Browser, chromium
from .made import made_bundle

SHOTS = Path(__file__).resolve().parents[2] / "reports" / "screenshots"
program = chromium()
pytestmark = pytest.mark.skipif(program is None, reason="no chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(made_bundle(), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert program is not None
    with Browser(program) as one:
        yield one


def outside(browser: Browser) -> list[str]:
    """Requests but for the file itself and what it carries inside."""
    return [url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))]


def tabs(browser: Browser) -> list[str]:
    return list(browser.value("[...document.querySelectorAll('[role=tab]')].map(one => one.dataset.key)"))


SETTLED = (
    "[...document.querySelectorAll('.current [data-figure]')].every(one => one.querySelector('.main-svg') && "
    "(one.querySelector('.plot-container')))"
)


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_tab_draws_without_an_error_or_a_request(browser: Browser, page: Path, look: str) -> None:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(page, width=390 if look == "phone" else 1280, dark=look == "dark")
    assert len(tabs(browser)) == 8
    for key in tabs(browser):
        browser.value(f"document.getElementById('tab-{key}').click()")
        browser.until(SETTLED)
        assert browser.value("document.querySelectorAll('[role=tabpanel].current').length") == 1
        assert browser.value("getComputedStyle(document.querySelector('.current')).display") == "block"
        assert browser.value("document.documentElement.scrollWidth <= innerWidth"), f"{key} is wider than the screen"
        browser.screenshot(SHOTS / f"{look}-{key}.png")
    assert browser.errors == []
    assert outside(browser) == []


def test_tabs_work_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    keys = tabs(browser)
    browser.value("document.querySelector('[role=tab]').focus()")
    selected = "document.querySelector('[role=tab][aria-selected=true]').dataset.key"
    for press, expected in (("ArrowRight", keys[1]), ("End", keys[-1]), ("ArrowRight", keys[0]), ("ArrowLeft", keys[-1]), ("Home", keys[0])):
        browser.press(press)
        browser.until(f"{selected} === '{expected}'")
        assert browser.value("document.activeElement.dataset.key") == expected
    assert browser.value("[...document.querySelectorAll('[role=tab]')].filter(one => one.tabIndex === 0).length") == 1


def test_address_opens_a_tab(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.value("location.hash = '#model'")
    browser.until("document.querySelector('[role=tab][aria-selected=true]').dataset.key === 'model'")


def test_hover_shows_values(browser: Browser, page: Path) -> None:
    browser.open(page)
    box = browser.value("(() => { const b = document.querySelector('.current [data-figure] .nsewdrag').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()")
    browser.point(box[0] + box[2] / 2, box[1] + box[3] * 0.7)
    browser.until("document.querySelector('.hoverlayer').textContent")
    assert "tok/s" in browser.value("document.querySelector('.hoverlayer').textContent")


def test_theme_button_switches_page_and_figures(browser: Browser, page: Path) -> None:
    browser.open(page)
    ink = "getComputedStyle(document.querySelector('.xtick text')).fill"
    before = browser.value(ink)
    browser.value("document.getElementById('theme').click()")
    browser.until(f"{ink} !== '{before}'")
    assert browser.value("document.documentElement.dataset.theme") == "dark"
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 25)"


def test_print_shows_every_part(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page)
    assert browser.pdf(tmp_path / "r.pdf").startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="print")
    hidden = "[...document.querySelectorAll('[role=tabpanel]')].filter(one => getComputedStyle(one).display === 'none').length"
    assert browser.value(hidden) == 0
    browser.value("dispatchEvent(new Event('beforeprint'))")
    browser.until("[...document.querySelectorAll('[data-figure]')].every(one => one.querySelector('.main-svg'))")
    browser.value("dispatchEvent(new Event('afterprint'))")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_without_plotly_the_tables_open(browser: Browser, page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = page.read_text()
    start = text.index('id="plotly">') + len('id="plotly">')
    broken.write_text(text[:start] + text[text.index("</script>", start) :])
    browser.call("Page.navigate", url=broken.as_uri())
    browser.until("document.documentElement?.classList.contains('undrawn')")
    assert "table" in browser.value("document.getElementById('trouble').textContent")
    assert browser.value("[...document.querySelectorAll('figure details')].every(one => one.open)")
