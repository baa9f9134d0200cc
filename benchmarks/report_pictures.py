"""Takes the pictures of docs/explain.md: reports on CartPole, in Chromium.

    python benchmarks/report_pictures.py [--folder docs/images]

Needs Debian's `chromium`, the extras `gpu` and `html-test`, and Pillow.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import fuselane
from fuselane.cartpole.problem import make_problem
from fuselane.cartpole.variants import VARIANTS

NUM_ENVS: Final = 2048
NUM_STEPS: Final = 1000
SIZE: Final = {"width": 1360, "height": 820}
SETTLE_MS: Final = 500
NUM_COLOURS: Final = 255


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture.

    Attributes:
        name: Of the file, without its ending.
        variant: Of CartPole.
        target: What it is compiled for.
        scheme: `dark` or `light`.
        prepare: Brings the page into the state to be shown.
    """

    name: str
    variant: str
    target: str
    scheme: str
    prepare: Callable[[Page], None]


def show_all(page: Page) -> None:
    page.keyboard.press("f")


def select_worst_kernel(page: Page) -> None:
    page.keyboard.press("j")


def select_line(page: Page) -> None:
    page.click("#tab-boundaries")
    page.locator("#code .row.used", has_text="return jnp.where(done, resets[row]").click()


def show_fusion_pass(page: Page) -> None:
    page.click("#tab-timeline")
    names = page.locator("#base option").all_inner_texts()[1:]
    stage = next(index for index, name in enumerate(names) if name.endswith(": fusion"))
    page.locator("#stage").evaluate(
        "(slider, stage) => { slider.value = stage; slider.dispatchEvent(new Event('input')); }",
        stage,
    )


PICTURES: Final = (
    Picture(name="overview", variant="naive", target="cpu", scheme="dark", prepare=show_all),
    Picture(
        name="kernel",
        variant="naive",
        target="rtx2080ti",
        scheme="light",
        prepare=select_worst_kernel,
    ),
    Picture(name="line", variant="concat", target="cpu", scheme="dark", prepare=select_line),
    Picture(
        name="passes", variant="concat", target="cpu", scheme="light", prepare=show_fusion_pass
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    folder: Path = parser.parse_args().folder
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as scratch:
        browser: Any = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for picture in PICTURES:
            report = Path(scratch) / "report.html"
            write_report(picture, report)
            page = browser.new_page(viewport=SIZE, color_scheme=picture.scheme)
            take(page, report, picture, folder / f"report-{picture.name}.png")
        browser.close()


def write_report(picture: Picture, path: Path) -> None:
    variant = VARIANTS[picture.variant]
    arguments = variant.get_arguments(make_problem(NUM_ENVS, NUM_STEPS))
    rollout = variant.make_rollout(NUM_STEPS)
    fuselane.explain(rollout, *arguments, target=picture.target).html(path)


def take(page: Any, report: Path, picture: Picture, path: Path) -> None:
    page.goto(report.as_uri())
    page.evaluate("document.getElementById('path').textContent = 'fuselane/cartpole/variants.py'")
    picture.prepare(page)
    page.mouse.move(5, 5)
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=path)
    page.close()
    image = Image.open(path).convert("RGB")
    image.quantize(NUM_COLOURS, kmeans=4, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main()
