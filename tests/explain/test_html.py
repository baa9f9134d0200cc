"""The page in a real browser: Chromium, driven by Playwright; skipped where one is missing."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.html.page import make_html
from fuselane.explain.model import ModuleModel
from fuselane.explain.report import Report
from fuselane.hlo.source_lines import SourceLine
from tests.explain.factory import ROLLOUT, large_module, rollout_module

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
EVIL: Final = "<img src=x onerror=window.pwned=1></script><script>window.pwned=2</script>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Opens the page of some modules, and sees to it that it neither complains nor connects."""
    complaints: list[str] = []
    requests: list[str] = []
    pages: list[Any] = []

    def open_page(*modules: ModuleModel, fragment: str = "", **options: Any) -> Any:
        path = tmp_path / f"report{len(pages)}.html"
        Report.of_modules(modules).html(path)
        page = browser.new_page(viewport={"width": 1400, "height": 900}, **options)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + fragment)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
    assert all(url.startswith("file:") for url in requests)


@pytest.fixture
def rollout(tmp_path: Path) -> ModuleModel:
    """The hand-made loop, its source beside it."""
    path = tmp_path / "rollout.py"
    path.write_text(ROLLOUT, encoding="utf-8")
    return rollout_module(str(path))


def click_box(page: Any, name: str, *, double: bool = False) -> None:
    place = page.evaluate("name => fuselane.place(name)", name)
    x, y = place["left"] + place["width"] / 2, place["top"] + 10
    (page.mouse.dblclick if double else page.mouse.click)(x, y)


def wait_for(page: Any, condition: str) -> None:
    """Waits until an expression holds; Playwright's own way would need `eval` in the page."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def test_it_opens(open_page: Opener, rollout: ModuleModel) -> None:
    """Facts, source, legend and the kernels, worst first."""
    page = open_page(rollout)
    assert page.title() == "jit_rollout on rtx2080ti · Fuselane"
    assert "launches a run\n3,001\n" in page.inner_text("#facts")
    rows = page.locator("#panel .line").all_inner_texts()
    assert [row.split("\n")[2] for row in rows] == ["fusion.3", "fusion.4", "add.5", "copy.9"]
    assert "random numbers 1" in page.inner_text("#legend")
    assert "noise = jax.random.uniform" in page.inner_text("#code")


def test_search_finds_and_goes_there(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    page.keyboard.press("/")
    page.keyboard.type("sine")
    assert [t.split("\n")[0] for t in page.locator("#results li").all_inner_texts()] == [
        "kernel",
        "instruction",
    ]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("fuselane.selection()") == {
        "kind": "node",
        "id": page.evaluate("fuselane.selection().id"),
        "instruction": "sine.1",
    }
    assert page.evaluate("fuselane.isOpen('fusion.4')"), "what holds it opens"
    page.keyboard.press("/")
    page.keyboard.type("no such thing")
    assert page.inner_text("#results") == "Nothing of that name."


def test_a_click_on_a_kernel_shows_its_lines(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    click_box(page, "fusion.4")
    details = page.inner_text("#details")
    assert "fusion.4" in details and "concatenate-users" in details and "stack-carry" in details
    lit = page.locator("#code .row.lit .number").all_inner_texts()
    assert lit == ["12", "13"]
    assert page.inner_text("#panel .line.chosen").split("\n")[2] == "fusion.4"
    assert page.url.endswith("#kernel=fusion.4")
    page.keyboard.press("Escape")
    assert not page.is_visible("#details") and page.locator("#code .row.lit").count() == 0


def test_a_click_on_a_line_shows_its_kernels(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    page.click("#code .row:has(.number:text-is('13'))")
    assert {"fusion.4", "add.5"} <= set(page.evaluate("fuselane.lit()"))
    lit = page.locator("#panel .line.lit").all_inner_texts()
    assert [row.split("\n")[2] for row in lit] == ["fusion.4", "add.5"]
    assert page.url.endswith("#line=rollout.py%3A13")


def test_fusions_open_and_close(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    click_box(page, "fusion.4", double=True)
    assert page.evaluate("fuselane.isOpen('fusion.4')")
    inside = page.evaluate("fuselane.place('sine.1')")
    around = page.evaluate("fuselane.place('fusion.4')")
    assert around["left"] < inside["left"] and around["top"] < inside["top"]
    assert inside["left"] + inside["width"] < around["left"] + around["width"]
    click_box(page, "fusion.4", double=True)
    assert not page.evaluate("fuselane.isOpen('fusion.4')")
    assert page.evaluate("fuselane.place('sine.1').key") == page.evaluate(
        "fuselane.place('fusion.4').key"
    )


def test_hovering_says_what_crosses_and_why(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    place = page.evaluate("fuselane.place('fusion.4')")
    page.mouse.move(place["left"] + 60, place["top"] + 12)
    assert "26.1% of the time, 1,000 × 3 µs" in page.inner_text("#tip")
    add = page.evaluate("fuselane.place('add.5')")
    middle = (place["top"] + place["height"] + add["top"]) / 2
    texts = []
    for x in range(int(add["left"]), int(place["left"] + place["width"]), 3):
        page.mouse.move(x, middle)
        texts.append(page.inner_text("#tip") if page.is_visible("#tip") else "")
    told = next(text for text in texts if "concatenate-users" in text)
    assert "concatenate.1 has 2 users" in told and "16.4 kB × 1,000 = 16.4 MB" in told


def test_boundaries_by_table_and_family(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    page.click("#tab-boundaries")
    page.fill("#filter", "random")
    page.click("#panel .line")
    details = page.inner_text("#details")
    assert "fusion.3 makes 4,096 random numbers." in details and "rollout.py:10" in details
    assert "boundary=fusion.3%3Eadd.5" in page.url
    button = page.locator("#legend button", has_text="random numbers")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"


def test_advice_shows_its_kernels_and_its_line(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    page.keyboard.press("5")
    page.locator(".advice article", has_text="stack-carry").click()
    assert page.evaluate("fuselane.lit()") == ["fusion.4", "add.5"]
    assert page.locator("#code .row.lit .number").all_inner_texts() == ["13"]
    page.keyboard.press("1")
    assert page.locator("#panel .line.lit").count() == 2


def test_tables_sort(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)

    def names() -> list[str]:
        return [row.split("\n")[2] for row in page.locator("#panel .line").all_inner_texts()]

    page.click("#panel .head button:has-text('Moved')")
    assert names() == ["add.5", "fusion.4", "fusion.3", "copy.9"]
    page.click("#panel .head button:has-text('Moved')")
    assert names() == ["copy.9", "fusion.3", "fusion.4", "add.5"]
    page.click("#panel .head button:has-text('Registers')")
    assert names()[0] == "fusion.3", "what is not known comes last"


def test_the_slider_goes_through_the_passes(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout)
    page.click("#tab-timeline")
    assert page.inner_text(".timeline .now b") == "copy-insertion"
    page.locator("#stage").evaluate(
        "slider => { slider.value = 1; slider.dispatchEvent(new Event('input')); }"
    )
    assert page.inner_text(".timeline .now b") == "algsimp"
    assert "dot\n1\n0\n\u22121" in page.inner_text(".timeline .diff")
    assert "Removed: 3" in page.inner_text(".timeline .diff")
    page.keyboard.press("]")
    assert page.inner_text(".timeline .now b") == "priority-fusion"
    page.select_option("#base", "0")
    assert "multiply ×1 multiply.7" in page.inner_text(".timeline .diff")
    page.fill("#trace", "dot")
    found = page.inner_text(".timeline .found")
    assert "1: algsimp" in found and "removed 1: dot.3" in found


def test_links_lead_into_the_page(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout, fragment="#kernel=add.5&tab=boundaries")
    assert page.evaluate("fuselane.selection().kernel") == "add.5"
    assert page.get_attribute("#tab-boundaries", "aria-selected") == "true"
    page.evaluate("location.hash = '#loop=while.1'")
    wait_for(page, "fuselane.selection()?.loop === 'while.1'")
    assert "1,000" in page.inner_text("#details")
    assert open_page(rollout, fragment="#kernel=nothing&stage=x").inner_text("#facts")


def test_modules_can_be_chosen(open_page: Opener, rollout: ModuleModel) -> None:
    other = dataclasses.replace(rollout, name="jit_other", kernels=rollout.kernels[:1])
    page = open_page(rollout, other)
    assert page.locator("#modules option").all_inner_texts() == [
        "jit_rollout (11.5 ms)",
        "jit_other (6 ms)",
    ]
    page.select_option("#modules", "1")
    assert page.locator("#panel .line").count() == 1
    assert page.url.endswith("#module=1")


def test_keys_and_themes(open_page: Opener, rollout: ModuleModel) -> None:
    page = open_page(rollout, color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("fuselane.selection().kernel") == "fusion.4"
    page.keyboard.press("k")
    assert page.evaluate("fuselane.selection().kernel") == "fusion.3"
    page.focus("#canvas")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("fuselane.selection().kernel") == "add.5"
    page.keyboard.press("?")
    assert page.is_visible("#keys")


def make_evil(file: str) -> ModuleModel:
    """Returns a module whose every string is an attack."""

    def poison(value: Any) -> Any:
        if isinstance(value, SourceLine):
            return SourceLine(file, value.line, EVIL)
        if isinstance(value, BoundaryReason):
            return value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: poison(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return dataclasses.replace(value, **fields)
        if isinstance(value, str):
            return f"{value}{EVIL}" if value else value
        if isinstance(value, tuple):
            return tuple(map(poison, value))
        if isinstance(value, dict):
            return {poison(key): poison(item) for key, item in value.items()}
        return value

    poisoned: ModuleModel = poison(rollout_module(file))
    # Opcodes decide what is a box; the rest of the names may be anything.
    clean = {x.name: x.opcode for x in rollout_module(file).instructions}
    return dataclasses.replace(
        poisoned,
        instructions=tuple(
            dataclasses.replace(x, opcode=clean[x.name.removesuffix(EVIL)])
            for x in poisoned.instructions
        ),
    )


def test_nothing_of_the_program_becomes_markup(open_page: Opener, tmp_path: Path) -> None:
    """Names, shapes, reasons, paths and source that look like markup are shown as text."""
    path = tmp_path / f"{EVIL.replace('/', '')}.py"
    path.write_text(ROLLOUT.replace("noise", EVIL), encoding="utf-8")
    page = open_page(make_evil(str(path)))
    for tab in ("boundaries", "loops", "timeline", "advice", "kernels"):
        page.click(f"#tab-{tab}")
    for row in range(4):
        page.locator("#panel .line").nth(row).click()
    page.keyboard.press("/")
    page.keyboard.type("img")
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert EVIL in page.inner_text("#details") and EVIL in page.inner_text("#code")


def test_the_policy_forbids_scripts_and_connections(browser: Any, tmp_path: Path) -> None:
    """Even what got into the page could not run, and could not reach anything."""
    path = tmp_path / "report.html"
    Report.of_modules([rollout_module()]).html(path)
    page = browser.new_page()
    page.goto(path.as_uri())
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        "document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.pwned=2>'); }"
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    reached = page.evaluate("fetch('https://example.org').then(() => true, () => false)")
    assert reached is False
    page.close()


def test_a_large_module_is_quick(open_page: Opener) -> None:
    """5,000 instructions: painted in two seconds, and only what is in view is drawn."""
    module = large_module()
    assert len(module.instructions) >= 5000
    paints = []
    for _ in range(3):
        page = open_page(module)
        entries = "performance.getEntriesByName('first-contentful-paint')"
        wait_for(page, f"{entries}.length")
        paint = f"{entries}[0].startTime"
        paints.append(max(page.evaluate(paint), page.evaluate("fuselane.readyMs")))
        if paints[-1] < 2000:
            break
    assert min(paints) < 2000, paints
    assert page.evaluate("fuselane.drawn()") < 200
    page.click("#open-all")
    page.wait_for_timeout(300)
    before = page.evaluate("fuselane.place('dot.50')")
    page.focus("#canvas")
    page.mouse.move(800, 300)
    page.mouse.wheel(0, -600)
    assert page.evaluate("fuselane.place('dot.50')")["width"] > before["width"]
    page.click("#tab-boundaries")
    assert page.locator("#panel .line").count() < 60


def test_reports_of_nothing_open(open_page: Opener) -> None:
    assert "There is no module" in open_page().inner_text("#code")
    bare = ModuleModel(name="jit_f", target="cpu")
    page = open_page(bare)
    for tab in ("boundaries", "loops", "timeline", "advice"):
        page.click(f"#tab-{tab}")
    unknown = dataclasses.replace(
        rollout_module(),
        boundaries=(
            dataclasses.replace(
                rollout_module().boundaries[0],
                bytes_per_run=None,
                source=None,
                decision=BoundaryDecision(reason=BoundaryReason.UNKNOWN, detail=""),
            ),
        ),
        kernels=tuple(dataclasses.replace(k, launches=None) for k in rollout_module().kernels),
        stages=(),
    )
    page = open_page(unknown)
    page.click("#tab-boundaries")
    page.click("#panel .line")
    assert "The reason is not known." in page.inner_text("#details")


def test_the_page_is_one_file() -> None:
    """No address of anything outside, and data that ends no block early."""
    page = make_html([rollout_module()], EVIL)
    assert not re.findall(
        r"""(?:src|href)=["']|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", page
    )
    data = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert json.loads(data)["note"] == EVIL and "<" not in data


def test_lines_of_libraries_stand_beside_the_users(
    open_page: Opener, rollout: ModuleModel, tmp_path: Path
) -> None:
    """The user's file is shown first; the library's can be chosen, and lights up as well."""
    path = tmp_path / "prng.py"
    path.write_text("def bits():\n    return 4\n", encoding="utf-8")

    def inside(source: SourceLine | None) -> SourceLine | None:
        return source and dataclasses.replace(source, library=SourceLine(str(path), 2, "bits"))

    first, *others = rollout.kernels
    kernels = (dataclasses.replace(first, source=inside(first.source)), *others)
    page = open_page(dataclasses.replace(rollout, kernels=kernels))
    assert "rollout.py:10 > prng.py:2" in page.locator("#panel .line").first.inner_text()
    assert page.locator("#files option").all_inner_texts() == ["rollout.py", "prng.py"]
    page.select_option("#files", label="prng.py")
    page.click("#code .row:has(.number:text-is('2'))")
    assert page.evaluate("fuselane.lit()") == [first.name]
    assert page.url.endswith("#line=prng.py%3A2")
