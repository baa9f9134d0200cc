"""Kernels as bytes and text."""

from __future__ import annotations

import dataclasses

import pytest

from fuselane.codegen.llvm import HostTarget
from fuselane.errors import CacheError
from fuselane.runtime.kernel import Kernel, compute_key, missing_features

TARGET = HostTarget(triple="x86_64-unknown-linux-gnu", cpu="skylake", features="+avx,+avx2,-sse4a")
KERNEL = Kernel(
    key="ab" * 32,
    symbol="kernel",
    object_code=bytes(range(256)) * 9,
    num_tiles=7,
    max_threads=3,
    target=TARGET,
)


def test_bytes_round_trip() -> None:
    assert Kernel.from_bytes(KERNEL.to_bytes()) == KERNEL


def test_text_round_trip() -> None:
    text = KERNEL.to_text()
    assert text.isascii() and not set(text) & set('"\\{},= ') - {"="}
    assert Kernel.from_text(text.encode()) == KERNEL


@pytest.mark.parametrize("size", [0, 1, 17, 18, 40, 50, 60, 200, -1])
def test_truncated_bytes_are_refused(size: int) -> None:
    with pytest.raises(CacheError):
        Kernel.from_bytes(KERNEL.to_bytes()[:size])


@pytest.mark.parametrize("position", [0, 17, 18, 49, 50, 54, 60, 1000, -1])
def test_changed_bytes_are_refused(position: int) -> None:
    data = bytearray(KERNEL.to_bytes())
    data[position] ^= 1
    with pytest.raises(CacheError):
        Kernel.from_bytes(bytes(data))


@pytest.mark.parametrize("text", [b"", b"AAAA", b"not base64!", KERNEL.to_text().encode()[:-8]])
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(CacheError):
        Kernel.from_text(text)


def test_keys_tell_parts_apart() -> None:
    keys = {compute_key("a", "bc"), compute_key("ab", "c"), compute_key("abc"), compute_key("")}
    assert len(keys) == 4
    assert all(len(key) == 64 for key in keys)


def test_missing_features() -> None:
    old = dataclasses.replace(TARGET, features="+avx,-avx2,-sse4a")
    new = dataclasses.replace(TARGET, features="+avx,+avx2,+avx512f,+sse4a")
    arm = dataclasses.replace(TARGET, triple="aarch64-apple-darwin", features="+neon")
    assert missing_features(KERNEL, TARGET) == ()
    assert missing_features(KERNEL, new) == ()
    assert missing_features(KERNEL, old) == ("avx2",)
    assert missing_features(KERNEL, arm) == ("x86_64",)
