"""Descriptions of GPUs, against published numbers."""

from __future__ import annotations

import pytest

from fuselane.gpu import GPUS


@pytest.mark.parametrize(
    ("name", "teraflops"),
    # The boards' data sheets: FP32 outside of tensor cores.
    [
        ("v100", 15.7),
        ("rtx2080ti", 13.4),
        ("a100", 19.5),
        ("l4", 30.3),
        ("rtx4090", 82.6),
        ("h100", 66.9),
        ("h200", 66.9),
        ("b200", 75.0),
    ],
)
def test_peak_is_what_the_data_sheet_says(name: str, teraflops: float) -> None:
    assert GPUS[name].peak_flops / 1e12 == pytest.approx(teraflops, rel=0.02)


@pytest.mark.parametrize(
    ("name", "block_threads", "registers", "shared_bytes", "expected"),
    # By hand, as CUDA's occupancy calculator does it.
    [
        ("h100", 128, 32, 0, 1.0),  # 16 blocks of 4 warps, 64 warps by registers
        ("h100", 128, 128, 0, 0.25),  # 4096 registers a warp: 16 warps
        ("h100", 1, 16, 0, 0.5),  # 32 blocks of one warp
        ("h100", 1024, 65, 0, 0.0),  # 72 registers a thread: 28 warps, 32 needed
        ("h100", 256, 32, 50 * 1024, 0.5),  # 51 KiB a block: 4 blocks of 8 warps
        ("rtx2080ti", 1024, 64, 0, 1.0),
        ("rtx2080ti", 32, 16, 0, 0.5),  # 16 blocks of one warp of 32
        ("rtx4090", 1024, 32, 0, 2 / 3),  # one block of 1024 of 1536 threads
        ("v100", 0, 32, 0, 0.0),
    ],
)
def test_occupancy(
    name: str, block_threads: int, registers: int, shared_bytes: int, expected: float
) -> None:
    assert GPUS[name].occupancy(block_threads, registers, shared_bytes) == pytest.approx(expected)
