"""Targets by name and by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselane.errors import InputError
from fuselane.gpu import GPUS
from fuselane.xla.targets import NAMES, config_text, find_target


def test_the_cpu_and_eight_gpus_have_names() -> None:
    assert ("cpu", *GPUS) == NAMES
    assert find_target("cpu").gpu is None
    assert find_target("h100").gpu is GPUS["h100"]


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_survives_being_written_to_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txtpb"
    path.write_text(config_text(GPUS[name]))
    target = find_target(str(path))
    assert target.config == config_text(GPUS[name])
    assert target.name == GPUS[name].name
    assert target.gpu is not None
    for field in ("compute_capability", "num_multiprocessors", "l2_bytes", "max_blocks"):
        assert getattr(target.gpu, field) == getattr(GPUS[name], field)
    assert target.gpu.clock_ghz == pytest.approx(GPUS[name].clock_ghz)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpu_device_info {", "holds no GpuTargetConfigProto: "),
        ("what: 3", "has no core_count, fpus_per_core"),
        ("gpu_device_info { core_count: 3 }", "has no fpus_per_core, clock_rate_ghz"),
        ("\x00\xff", "holds no GpuTargetConfigProto: "),
        ("", "has no core_count"),
    ],
)
def test_files_that_describe_no_gpu(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txtpb"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=sentence) as caught:
        find_target(str(path))
    assert "\n" not in str(caught.value)


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="There is no target 'h1000'; targets are cpu, v100, "):
        find_target("h1000")
