"""Descriptions of machines, from text that other machines' kernels have printed."""

from __future__ import annotations

import os

import pytest

from fuselane.device import (
    DeviceDescription,
    describe,
    host_device,
    parse_cache_size,
    parse_cpu_info,
)

X86_INFO = """\
processor\t: 0
model name\t: Some Xeon
flags\t\t: fpu avx2 fma avx512f avx512dq

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""
ARM_INFO = """\
processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd sve
"""
AVX2 = frozenset({"avx", "avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}


def device(machine: str, features: frozenset[str]) -> DeviceDescription:
    return describe(
        machine=machine,
        name="test",
        features=features,
        l1_bytes=1,
        l2_bytes=2,
        num_cores=3,
    )


@pytest.mark.parametrize(
    ("machine", "features", "vector_bits", "num_registers", "has_masks"),
    [
        ("x86_64", AVX512, 512, 32, True),
        ("AMD64", AVX512, 512, 32, True),
        ("x86_64", AVX2 | {"avx512f"}, 256, 16, False),
        ("x86_64", AVX2, 256, 16, False),
        ("x86_64", frozenset({"sse4_2"}), 128, 16, False),
        ("aarch64", frozenset({"asimd", "sve"}), 128, 32, False),
        ("arm64", frozenset(), 128, 32, False),
    ],
)
def test_vector_unit(
    machine: str,
    features: frozenset[str],
    vector_bits: int,
    num_registers: int,
    has_masks: bool,
) -> None:
    found = device(machine, features)
    assert found.vector_bits == vector_bits
    assert found.num_vector_registers == num_registers
    assert found.has_masked_memory is has_masks


def test_gathers_are_fast_with_avx_512_and_on_intel() -> None:
    for features in (AVX2, AVX512, AVX512 | {"sse4a"}):
        assert device("x86_64", features).has_fast_gathers
    for features in (AVX2 | {"sse4a"}, frozenset({"sse4_2"})):
        assert not device("x86_64", features).has_fast_gathers
    assert not device("aarch64", frozenset({"asimd"})).has_fast_gathers


def test_units_are_as_wide_as_registers_but_on_zen_4() -> None:
    zen_4 = AVX512 | {"sse4a"}
    assert device("x86_64", zen_4).unit_bits == 256
    for features in (AVX2, AVX2 | {"sse4a"}, AVX512, AVX512 | {"avx_vnni"}, zen_4 | {"avx_vnni"}):
        found = device("x86_64", features)
        assert found.unit_bits == found.vector_bits


def test_features_are_sorted_text() -> None:
    assert device("x86_64", AVX2).features == "avx avx2 fma"


def test_cpu_info_is_that_of_the_first_processor() -> None:
    assert parse_cpu_info(X86_INFO) == (
        "Some Xeon",
        frozenset({"fpu", "avx2", "fma", "avx512f", "avx512dq"}),
    )
    assert parse_cpu_info(ARM_INFO) == ("", frozenset({"fp", "asimd", "sve"}))
    assert parse_cpu_info("") == ("", frozenset())


@pytest.mark.parametrize(
    ("text", "size"),
    [("48K\n", 48 << 10), ("2M", 2 << 20), ("512", 512), ("", 0), ("many", 0), ("K", 0)],
)
def test_cache_sizes(text: str, size: int) -> None:
    assert parse_cache_size(text) == size


def test_host_is_described() -> None:
    host = host_device()
    assert host is host_device()
    assert host.name
    assert host.vector_bits in (128, 256, 512)
    assert host.l1_bytes >= 8 << 10
    assert host.l2_bytes >= host.l1_bytes
    assert 1 <= host.num_cores <= (os.cpu_count() or 1)
