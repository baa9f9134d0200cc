"""Where instructions come from."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest

from fuselane.hlo import HloModule, SourceLine
from fuselane.hlo.proto import OpMetadata, StackFrameIndexProto
from fuselane.hlo.source_lines import SourceLines
from tests.hlo import programs, xla


def _helper(x: Any) -> Any:
    return jnp.tanh(x)  # The marked line.


def _line_of(mark: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.endswith(f"# {mark}\n"))


def _program(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, y: _helper(y), x)


def test_lines_of_a_real_program() -> None:
    module = HloModule.from_bytes(xla.compiled(_program, jnp.ones(8)))
    instructions = [i for computation in module.computations for i in computation.instructions]
    tanh = next(i for i in instructions if i.opcode == "tanh")
    expected = SourceLine(__file__, _line_of("The marked line."), "_helper")
    assert module.source(tanh) == expected
    assert str(expected) == f"test_source_lines.py:{expected.line} (_helper)"


def test_the_message_itself_may_name_the_line() -> None:
    module = xla.module_of(programs.ALL["elementwise"])
    copy = next(i for i in module.entry.instructions if i.opcode == "copy")
    assert module.source(copy) == SourceLine("f.py", 3)
    assert str(module.source(copy)) == "f.py:3"
    assert module.source(module.entry.root) is None


def _index(*files: str) -> Any:
    """Returns an index with one frame per file; the first is the innermost."""
    index = StackFrameIndexProto(file_names=files, function_names=["f"])
    for number in range(1, len(files) + 1):
        index.file_locations.add(file_name_id=number, function_name_id=1, line=10 * number)
        index.stack_frames.add(
            file_location_id=number, parent_frame_id=(number + 1) % (len(files) + 1)
        )
    return index


def test_frames_inside_jax_are_passed_over() -> None:
    inside = "/venv/lib/python3.11/site-packages/jax/_src/numpy/ufuncs.py"
    lines = SourceLines(_index(inside, "/home/me/train.py", "/home/me/main.py"))
    assert lines.find(OpMetadata(stack_frame_id=1)) == SourceLine("/home/me/train.py", 20, "f")
    assert [line.line for line in lines.stack(1)] == [10, 20, 30]
    only_inside = SourceLines(_index(inside))
    assert only_inside.find(OpMetadata(stack_frame_id=1)) == SourceLine(inside, 10, "f")


def _find(*files: str) -> SourceLine:
    found = SourceLines(_index(*files)).find(OpMetadata(stack_frame_id=1))
    assert found is not None
    return found


_PACKAGES: Final = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    "file",
    [
        f"{_PACKAGES}/flax/linen/linear.py",
        "/usr/lib/python3/dist-packages/flax/linear.py",
        "/usr/lib/python3.12/functools.py",
        "<string>",
    ],
)
def test_the_users_line_is_chosen_and_knows_what_it_led_to(file: str) -> None:
    found = _find(file, f"{_PACKAGES}/flax/module.py", "/home/me/train.py", "/home/me/main.py")
    library = SourceLine(file, 10, "f")
    assert found == SourceLine("/home/me/train.py", 30, "f", library=library)
    assert found.innermost == library
    assert str(found) == f"train.py:30 (f), in {file.rpartition('/')[2]}:10 (f)"


def test_a_line_of_the_users_own_has_no_library() -> None:
    found = _find("/home/me/train.py", f"{_PACKAGES}/equinox/jit.py", "/home/me/main.py")
    assert found == found.innermost == SourceLine("/home/me/train.py", 10, "f")


def test_callers_of_explain_are_no_part_of_the_program() -> None:
    library = f"{_PACKAGES}/flax/linear.py"
    runner = f"{_PACKAGES}/fuselane/xla/capture.py"
    found = _find(library, runner, "/home/me/calls_explain.py")
    assert found == SourceLine(library, 10, "f")


def test_damaged_indices_do_no_harm() -> None:
    index = _index("a.py")
    index.stack_frames[0].parent_frame_id = 1
    lines = SourceLines(index)
    assert lines.stack(1) == [SourceLine("a.py", 10, "f")]
    assert lines.find(OpMetadata(stack_frame_id=7)) is None
    index.stack_frames[0].file_location_id = 9
    assert SourceLines(index).find(OpMetadata(stack_frame_id=1)) is None
    index.file_locations[0].file_name_id = 9
    index.stack_frames[0].file_location_id = 1
    assert SourceLines(index).find(OpMetadata(stack_frame_id=1)) == SourceLine("", 10, "f")
