"""Pipelines by name and as text."""

from __future__ import annotations

import pytest

from fuselane.errors import OptionError
from fuselane.fusion.cpu_rules import CpuRules
from fuselane.fusion.instruction_fusion import InstructionFusion
from fuselane.fusion.pipelines import (
    PASSES,
    PIPELINES,
    parse_pipeline,
    pipeline_text,
    refines,
    run_pipeline,
    settings,
    with_setting,
)
from fuselane.fusion.priority_fusion import PriorityFusion
from tests.hlo.xla import module_of


@pytest.mark.parametrize("name", PIPELINES)
def test_names(name: str) -> None:
    """A name stands for its passes."""
    assert parse_pipeline(name) == PIPELINES[name]


def test_fields_of_passes_and_of_their_rules() -> None:
    """Both are set in braces."""
    text = "instruction-fusion{may-duplicate=false, max-duplication=20}, priority-fusion"
    assert parse_pipeline(text) == (
        InstructionFusion(may_duplicate=False, rules=CpuRules(max_duplication=20)),
        PriorityFusion(),
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *((name, name) for name in PIPELINES),
        ("instruction-fusion", "xla-today-cpu"),
        (
            " instruction-fusion{max-duplication=20, may-duplicate=false},priority-fusion{}",
            "instruction-fusion{max-duplication=20,may-duplicate=false},priority-fusion",
        ),
        (
            "xla-today-cpu , fusion-merger{max-bytes-ratio=1.50}",
            "instruction-fusion,fusion-merger{max-bytes-ratio=1.5}",
        ),
        (
            "fixed-point{max-rounds=3}( fusion-cse,fixed-point(fusion-merger) ),fusion-cse",
            "fixed-point{max-rounds=3}(fusion-cse,fixed-point(fusion-merger)),fusion-cse",
        ),
    ],
)
def test_written_as_text(text: str, written: str) -> None:
    """A pipeline's text is short, and means the same."""
    assert pipeline_text(parse_pipeline(text)) == written
    assert parse_pipeline(written) == parse_pipeline(text)


@pytest.mark.parametrize("name", PASSES)
def test_each_setting_can_be_changed(name: str) -> None:
    """One at a time, and text tells."""
    known = PASSES[name]
    for key, value in settings(known).items():
        other = not value if isinstance(value, bool) else value + 1
        changed = with_setting(known, key, other)
        assert settings(changed) == settings(known) | {key: other}
        assert parse_pipeline(pipeline_text((changed,))) == (changed,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "A pipeline is one of none, "),
        ("fuse-all", "There is no fusion pass 'fuse-all'; there are fixed-point, "),
        ("none{x=1}", "The pipeline none has no fields."),
        (
            "xla-today-cpu{max-reduces=9}",
            "The pipeline xla-today-cpu has no fields; write its passes and set theirs: "
            "instruction-fusion.",
        ),
        ("xla-2021(fusion-cse)", "in parentheses after `fixed-point`, and only there."),
        (
            "fixed-point(" * 2000 + "fusion-cse" + ")" * 2000,
            "No more than 20 `fixed-point` may stand in each other.",
        ),
        ("xla-2022", "and the pipelines none, xla-today-cpu, xla-today-gpu, xla-2021, xla-2023, "),
        ("fixed-point", "Passes stand in parentheses after `fixed-point`, and only there."),
        ("fusion-cse(fusion-merger)", "in parentheses after `fixed-point`, and only there."),
        ("fixed-point(fusion-cse", "'fixed-point(fusion-cse' is no list of passes such as"),
        ("fixed-point(fusion-cse))", "'fixed-point(fusion-cse))' is no list of passes such as"),
        ("fusion-cse,", "'fusion-cse,' is no list of passes such as"),
        ("fusion-merger{max-bytes-ratio=nan}", "max-bytes-ratio} is a number, not 'nan'."),
        ("instruction-fusion{", "'instruction-fusion{' is no list of passes such as"),
        ("instruction-fusion{x=1}", "instruction-fusion has no field 'x'; it has max-concat"),
        ("instruction-fusion{max-reduces}", "'max-reduces' of instruction-fusion is not of the"),
        ("instruction-fusion{max-reduces=-1}", "is a whole number, not '-1'."),
        ("instruction-fusion{may-duplicate=1}", "is true or false, not '1'."),
    ],
)
def test_bad_text(text: str, sentence: str) -> None:
    """One sentence says what is wrong."""
    with pytest.raises(OptionError) as caught:
        parse_pipeline(text)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_fixed_points_in_each_other() -> None:
    """As deep as they may stand."""
    text = "fixed-point(" * 20 + "fusion-cse" + ")" * 20
    assert pipeline_text(parse_pipeline(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fixed-point(lane-kernels)", True),
        ("shared-work,fixed-point(fixed-point(priced-merger))", True),
        ("fixed-point(shared-work,fusion-cse)", False),
        ("lane-kernels,fixed-point(fusion-merger)", False),
        ("fixed-point()", False),
    ],
)
def test_which_go_on_from_xlas_fusions(text: str, expected: bool) -> None:
    """All their passes do, inside fixed points too."""
    assert refines(parse_pipeline(text)) == expected


def test_rule_values_decide() -> None:
    """The same module, another value of a rule, another number of kernels."""
    text = """HloModule m
    ENTRY main { x = f32[8] parameter(0) a = f32[8] sine(x) b = f32[8] negate(a)
      c = f32[8] abs(a) ROOT t = (f32[8], f32[8]) tuple(b, c) }"""
    for pipeline, num_fusions in (
        ("xla-today-cpu", 2),
        ("instruction-fusion{may-duplicate=false}", 0),
        ("none", 0),
    ):
        module = module_of(text)
        run_pipeline(parse_pipeline(pipeline), module)
        assert sum(i.opcode == "fusion" for i in module.entry.instructions) == num_fusions
