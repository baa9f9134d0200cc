"""The page for the terminal and the annotated source, as they are to look."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from fuselane.boundary import BoundaryDecision, BoundaryReason
from fuselane.explain.report import Report
from fuselane.explain.units import format_bytes, format_count, format_us, printable
from fuselane.hlo.source_lines import SourceLine
from tests.explain.factory import ROLLOUT, large_module, rollout_module

WIDE = """\
jit_rollout on rtx2080ti, compiled by XLA in 0.42 s
4 kernels · 3,001 launches a run · 98.3 MB moved · 11.5 ms modelled · under Fuselane 2 launches

Kernels, by modelled time
  share              time  launches    bytes  kernel    line           computes
  52.2%  ████████    6 ms     1,000  16.4 MB  fusion.3  rollout.py:10  kLoop: add×20 xor×20 iota
  26.1%  ████        3 ms     1,000  32.8 MB  fusion.4  rollout.py:13  kLoop: add×2 multiply×2 conc…
  21.7%  ███▍      2.5 ms     1,000  49.2 MB  add.5     rollout.py:13  single: add
   0.0%              2 µs         1  32.8 kB  copy.9    rollout.py:17  copy: copy

Loops
  while.1  1,000 iterations × 3 kernels = 3,000 launches, 1 under Fuselane  carries 16.4 kB
  rollout.py:17
    fused  The loop runs as one native kernel over 2,048 lanes.

Boundaries: what stays unfused, by bytes a run
  16.4 MB  concatenate-users  1 edge  A concatenation with several users would be computed once for
           each of them.
             fusion.4 → add.5  rollout.py:13  f32[2,2048], 16.4 kB × 1,000
               concatenate.1 has 2 users and would be computed twice.
  16.4 MB  random-numbers  1 edge  Random bits are made by a kernel or a loop of their own.
             fusion.3 → add.5  rollout.py:10 → rollout.py:13  u32[2,2048], 16.4 kB × 1,000
               fusion.3 makes 4,096 random numbers.
  16.4 MB  loop-control  1 edge  The value is carried by a loop: each iteration reads it from memory
           and writes it back.
             add.5 → carried  rollout.py:13 → rollout.py:17  f32[2,2048], 16.4 kB × 1,000
  16.4 kB  copy  1 edge  The value is copied so that a buffer can be updated or reused.
             while.1 → copy.9  rollout.py:17  f32[2,2048], 16.4 kB
  16.4 kB  1 at the edges of the program

Advice
  ×2.09  random-in-loop  rollout.py:10
         Random numbers are drawn in each of 1,000 iterations: draw them before.
  ×1.35  stack-carry  rollout.py:13
         The carry is stacked from 2 arrays in each iteration: carry them apart."""

NARROW_KERNELS = """\
  share    time  launches    bytes  kernel    line
  52.2%    6 ms     1,000  16.4 MB  fusion.3  rollout.py:10
  26.1%    3 ms     1,000  32.8 MB  fusion.4  rollout.py:13"""

LISTING = """\
rollout.py
         7 │ def step(carry, _):
         8 │     state, key = carry
         9 │     key, draw = jax.random.split(key)
             part of fusion.3
 52%    10 │     noise = jax.random.uniform(draw, state.shape)
             kernel fusion.3  52.2%  1,000 × 6 µs, 16.4 MB
             random-numbers fusion.3 → add.5 (line 13)  16.4 MB a run
             advice ×2.09 Random numbers are drawn in each of 1,000 iterations: draw them before.
        11 │     x, v = state
        12 │     x, v = x + 0.02 * v, v - 0.02 * jnp.sin(x)
             part of fusion.4
 48%    13 │     return (jnp.stack([x, v]) + noise, key), None
             kernel fusion.4  26.1%  1,000 × 3 µs, 32.8 MB
             kernel add.5  21.7%  1,000 × 2.5 µs, 49.2 MB
             concatenate-users fusion.4 → add.5  16.4 MB a run
             loop-control add.5 → carried (line 17)  16.4 MB a run
             advice ×1.35 The carry is stacked from 2 arrays in each iteration: carry them apart.
        14 │
        15 │
        16 │ def rollout(state, key):
        17 │     return jax.lax.scan(step, (state, key), length=1000)[0][0]
             loop while.1  1,000 iterations, 3,000 launches, fused by Fuselane
             kernel copy.9  0.0%  1 × 2 µs, 32.8 kB
             copy while.1 → copy.9  16.4 kB a run"""


def test_the_page() -> None:
    """Kernels worst first, then loops, boundaries by bytes, advice; nothing but plain text."""
    report = Report.of_modules([rollout_module()])
    assert report.text(width=100) == WIDE
    assert report.num_fused == 1


@pytest.mark.parametrize("width", [60, 72, 80, 100, 140])
def test_lines_fit_the_width(width: int) -> None:
    report = Report.of_modules([rollout_module(), large_module(num_instructions=300)])
    assert max(map(len, report.text(width=width).splitlines())) <= width


def test_a_narrow_page_keeps_the_numbers() -> None:
    text = Report.of_modules([rollout_module()]).text(width=72)
    assert NARROW_KERNELS in text


def test_a_large_module_stays_on_two_screens() -> None:
    """Long lists are cut, with what is left out counted."""
    text = Report.of_modules([large_module()]).text(width=100)
    assert len(text.splitlines()) < 80
    assert "more kernels with" in text and "more boundaries of other kinds" in text


def test_modules_beyond_the_first_few_get_a_line() -> None:
    modules = [dataclasses.replace(rollout_module(), name=f"jit_f{i}") for i in range(7)]
    text = Report.of_modules(modules, note="Seven in all.").text(width=100)
    assert "3 more modules" in text and text.endswith("Seven in all.")
    assert text.count("Kernels, by modelled time") == 4


def test_unknown_trip_counts_are_said() -> None:
    """Times and bytes then count one iteration, and the page says so."""
    module = rollout_module()
    kernels = tuple(dataclasses.replace(kernel, launches=None) for kernel in module.kernels)
    text = Report.of_modules([dataclasses.replace(module, kernels=kernels)]).text(width=120)
    assert "? launches a run" in text
    assert "13.5 µs modelled, with one iteration of each loop of unknown length" in text


def test_an_unknown_reason_is_shown_like_any_other() -> None:
    module = rollout_module()
    decision = BoundaryDecision(reason=BoundaryReason.UNKNOWN, detail="")
    boundaries = (dataclasses.replace(module.boundaries[0], decision=decision),)
    text = Report.of_modules([dataclasses.replace(module, boundaries=boundaries)]).text(width=100)
    assert "unknown  1 edge  The reason is not known." in text


def test_colour_is_the_consoles_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets colour unless NO_COLOR is set; a file gets none, nor does `text`."""
    report = Report.of_modules([rollout_module()])

    def shown(**options: object) -> str:
        console = Console(file=io.StringIO(), width=100, **options)  # type: ignore[arg-type]
        with console.capture() as capture:
            console.print(report)
        return capture.get()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in shown() and "\x1b[36m" in shown(force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in shown(force_terminal=True)
    assert "\x1b[" not in report.text(width=100)


def test_names_cannot_steer_the_terminal() -> None:
    """Escape sequences and rich's markup in names are shown as they are."""
    module = rollout_module()
    name = "\x1b]0;owned\x07[red]x[/red]"
    kernels = (dataclasses.replace(module.kernels[0], name=name), *module.kernels[1:])
    report = Report.of_modules([dataclasses.replace(module, name=name, kernels=kernels)])
    for text in (report.text(width=120), report.annotated(width=120)):
        assert "\x1b" not in text and "\x07" not in text and "[red]x[/red]" in text


def test_the_listing(tmp_path: Path) -> None:
    """Each line with its share of the time, and what it became below it."""
    path = tmp_path / "rollout.py"
    path.write_text(ROLLOUT, encoding="utf-8")
    assert Report.of_modules([rollout_module(str(path))]).annotated(width=100) == LISTING


def test_the_listing_without_its_file() -> None:
    text = Report.of_modules([rollout_module("/nowhere/rollout.py")]).annotated(width=100)
    assert "/nowhere/rollout.py is not there to be shown." in text
    assert "kernel fusion.3  52.2%" in text
    assert Report().annotated(width=100) == "Nothing in the report has a source line."


def test_only_python_files_are_read(tmp_path: Path) -> None:
    """Modules come from anywhere: their metadata must not pull other files into a report."""
    secret = tmp_path / "id_rsa"
    secret.write_text("PRIVATE\n" * 40, encoding="utf-8")
    report = Report.of_modules([rollout_module(str(secret))])
    page = tmp_path / "page.html"
    report.html(page)
    assert "PRIVATE" not in report.annotated(width=100)
    assert "PRIVATE" not in page.read_text(encoding="utf-8")


def test_numbers_have_three_digits() -> None:
    assert [format_bytes(n) for n in (0, 8, 999, 1000, 16_384, 1.5e9)] == [
        "0 B",
        "8 B",
        "999 B",
        "1 kB",
        "16.4 kB",
        "1.5 GB",
    ]
    assert [format_us(n) for n in (0.5, 12.34, 999.6, 5e6)] == ["0.5 µs", "12.3 µs", "1 ms", "5 s"]
    assert [format_count(n) for n in (None, 10_000, 2.5)] == ["?", "10,000", "2.5"]
    assert printable("a\x1b\u202eb") == "a\ufffd\ufffdb"


def test_a_line_that_led_into_a_library_is_shown_with_that(tmp_path: Path) -> None:
    """The user's line is what counts; the library's stands behind it, in all faces."""
    path = tmp_path / "rollout.py"
    path.write_text(ROLLOUT, encoding="utf-8")
    module = rollout_module(str(path))
    kernel = module.kernels[0]
    library = SourceLine("/lib/python3.11/site-packages/rng/prng.py", 7, "bits")
    assert kernel.source is not None
    source = dataclasses.replace(kernel.source, library=library)
    kernels = (dataclasses.replace(kernel, source=source), *module.kernels[1:])
    first, *others = module.boundaries
    inside = dataclasses.replace(first, source=source, consumer_source=source)
    module = dataclasses.replace(module, kernels=kernels, boundaries=(inside, *others))
    report = Report.of_modules([module])
    page = report.text(width=200)
    assert "rollout.py:10 > prng.py:7  kLoop" in page
    assert f"{inside.consumer}  rollout.py:10 > prng.py:7  " in page
    assert "6 µs, 16.4 MB  in prng.py:7\n" in report.annotated(width=100)


def test_the_listing_shares_the_time_of_all_modules() -> None:
    module = rollout_module("/nowhere/rollout.py")
    text = Report.of_modules([module, dataclasses.replace(module, name="again")]).annotated(100)
    assert " 52%    10 │" in text and "kernel fusion.3  26.1%" in text
