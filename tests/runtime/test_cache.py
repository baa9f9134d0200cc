"""The kernel cache on disk and in memory."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from fuselane.codegen.llvm import HostTarget
from fuselane.runtime import cache as cache_module
from fuselane.runtime.cache import KernelCache, open_cache
from fuselane.runtime.kernel import Kernel, compute_key

TARGET = HostTarget(triple="x86_64-unknown-linux-gnu", cpu="skylake", features="")


def make(name: str, size: int = 1000) -> Kernel:
    return Kernel(
        key=compute_key(name),
        symbol=name,
        object_code=name.encode() * (size // len(name)),
        num_tiles=1,
        max_threads=0,
        target=TARGET,
    )


def never() -> Kernel:
    raise AssertionError("built although cached")


def kernel_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.kernel"))


def test_a_second_process_finds_it(own_cache: Path) -> None:
    kernel = make("first")
    assert KernelCache(own_cache).get_or_build(kernel.key, lambda: kernel) is kernel
    assert KernelCache(own_cache).get_or_build(kernel.key, never) == kernel
    assert KernelCache(own_cache).disk_usage() == (1, len(kernel.to_bytes()))


def test_memory_alone() -> None:
    kernel = make("memory")
    cache = KernelCache(None)
    assert cache.get(kernel.key) is None
    cache.put(kernel)
    assert cache.get_or_build(kernel.key, never) is kernel
    assert cache.disk_usage() == (0, 0)
    cache.forget()
    assert cache.get(kernel.key) is None


def test_no_disk_when_the_limit_is_zero(own_cache: Path) -> None:
    KernelCache(own_cache, disk_bytes=0).put(make("a"))
    assert not own_cache.exists()


def test_directory_and_files_are_private(own_cache: Path) -> None:
    KernelCache(own_cache).put(make("private"))
    assert own_cache.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in kernel_files(own_cache))
    assert len(os.listdir(own_cache)) == 1, "temporary files are left"


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "swap", "directory"])
def test_damaged_files_are_made_anew(own_cache: Path, damage: str) -> None:
    kernel = make("damaged")
    KernelCache(own_cache).put(kernel)
    (path,) = kernel_files(own_cache)
    data = path.read_bytes()
    match damage:
        case "flip":
            path.write_bytes(data[:-3] + bytes([data[-3] ^ 4]) + data[-2:])
        case "truncate":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case "swap":
            path.write_bytes(make("other").to_bytes())
        case "directory":
            path.unlink()
            path.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert KernelCache(own_cache).get_or_build(kernel.key, lambda: kernel) is kernel
    if damage != "directory":
        assert KernelCache(own_cache).get_or_build(kernel.key, never) == kernel


def test_directory_that_cannot_be_written(own_cache: Path) -> None:
    own_cache.write_text("a file where the directory should be")
    cache = KernelCache(own_cache)
    with pytest.warns(UserWarning, match="cannot keep kernels") as caught:
        for name in ("a", "b", "c"):
            kernel = make(name)
            assert cache.get_or_build(kernel.key, lambda kernel=kernel: kernel) is kernel  # type: ignore[misc]
            assert cache.get_or_build(kernel.key, never) is kernel
    assert len(caught) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_directory(own_cache: Path) -> None:
    kernel, other = make("kept"), make("other")
    KernelCache(own_cache).put(kernel)
    own_cache.chmod(0o500)
    cache = KernelCache(own_cache)
    with pytest.warns(UserWarning, match="cannot keep kernels") as caught:
        cache.put(other)
        cache.put(make("third"))
    assert len(caught) == 1
    assert cache.get(other.key) is other
    assert cache.get(kernel.key) == kernel


def test_directory_others_may_write_is_not_used(own_cache: Path) -> None:
    kernel = make("planted")
    KernelCache(own_cache).put(kernel)
    own_cache.chmod(0o777)
    cache = KernelCache(own_cache)
    assert cache.get(kernel.key) is None
    with pytest.warns(UserWarning, match="not this user's alone"):
        cache.put(make("new"))
    assert len(kernel_files(own_cache)) == 1


def test_warnings_as_errors_do_not_escape(own_cache: Path) -> None:
    own_cache.write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelCache(own_cache).put(make("a"))


def test_oldest_files_go_first(own_cache: Path) -> None:
    kernels = [make(f"kernel{i}", 10_000) for i in range(8)]
    cache = KernelCache(own_cache, disk_bytes=5 * len(kernels[0].to_bytes()))
    for age, kernel in enumerate(kernels[:5]):
        cache.put(kernel)
        stamp = time.time() - 1000 + age
        os.utime(own_cache / f"{kernel.key}.kernel", (stamp, stamp))
    assert KernelCache(own_cache).get(kernels[0].key) is not None, "and makes it the youngest"
    cache.put(kernels[5])
    left = {path.stem for path in kernel_files(own_cache)}
    assert kernels[0].key in left and kernels[5].key in left
    assert kernels[1].key not in left
    count, size = cache.disk_usage()
    assert count < 6 and size <= cache.disk_bytes


def test_memory_is_bounded(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MEMORY_BYTES", 25_000)
    cache = KernelCache(None)
    kernels = [make(f"kernel{i}", 10_000) for i in range(4)]
    for kernel in kernels:
        cache.put(kernel)
    assert [cache.get(kernel.key) is not None for kernel in kernels] == [False, False, True, True]


def test_files_of_crashed_writers_go(own_cache: Path) -> None:
    KernelCache(own_cache).put(make("a"))
    old, young = own_cache / ".tmp-old", own_cache / ".tmp-young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    KernelCache(own_cache).put(make("b"))
    assert young.exists() and not old.exists()


def test_threads_build_once() -> None:
    cache = KernelCache(None)
    kernel = make("threads")
    builds: list[int] = []
    results: list[Kernel] = []

    def build() -> Kernel:
        builds.append(1)
        time.sleep(0.05)
        return kernel

    threads = [
        threading.Thread(target=lambda: results.append(cache.get_or_build(kernel.key, build)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert all(result is kernel for result in results) and len(results) == 8


def test_a_failed_build_can_be_tried_again() -> None:
    cache = KernelCache(None)
    kernel = make("again")
    with pytest.raises(AssertionError):
        cache.get_or_build(kernel.key, never)
    assert cache.get_or_build(kernel.key, lambda: kernel) is kernel


def test_one_cache_per_directory(own_cache: Path) -> None:
    assert open_cache(own_cache) is open_cache(own_cache, 123)
    assert open_cache(own_cache).disk_bytes == 123


def test_what_is_written_names_no_other_place(own_cache: Path) -> None:
    """Keys come from executables too, so they are no paths."""
    kernel = make("outside")
    (own_cache.parent / "outside.kernel").write_bytes(kernel.to_bytes())
    cache = KernelCache(own_cache)
    cache.put(make("a"))
    for key in ("../outside", str(own_cache.parent / "outside"), "", "..", kernel.key + "/../x"):
        assert cache.get(key) is None


def test_links_are_not_followed(own_cache: Path) -> None:
    kernel = make("linked")
    KernelCache(own_cache).put(kernel)
    (path,) = kernel_files(own_cache)
    elsewhere = own_cache.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    cache = KernelCache(own_cache)
    assert cache.get(kernel.key) is None
    cache.put(kernel)
    assert not path.is_symlink() and elsewhere.exists()
    assert KernelCache(own_cache).get(kernel.key) == kernel


def test_what_is_no_file_is_not_waited_for(own_cache: Path) -> None:
    kernel = make("pipe")
    own_cache.mkdir(mode=0o700)
    os.mkfifo(own_cache / f"{kernel.key}.kernel")
    assert KernelCache(own_cache).get(kernel.key) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("what", ["directory", "file", "link"])
def test_others_kernels_are_not_used(own_cache: Path, what: str) -> None:
    kernel = make("foreign")
    KernelCache(own_cache).put(kernel)
    used = own_cache
    if what == "directory":
        os.chown(own_cache, 12345, 12345)
    elif what == "file":
        os.chown(kernel_files(own_cache)[0], 12345, 12345)
    else:
        used = own_cache.parent / "link"
        used.symlink_to(own_cache)
        assert KernelCache(used).get(kernel.key) == kernel, "a link of the user's own"
        os.lchown(used, 12345, 12345)
    cache = KernelCache(used)
    assert cache.get(kernel.key) is None
    if what != "file":
        with pytest.warns(UserWarning, match="not this user's"):
            cache.put(make("new"))
        assert len(kernel_files(own_cache)) == 1


def test_headers_that_cannot_be_read(own_cache: Path) -> None:
    """Content that fits its hash and is no kernel all the same."""
    kernel = make("header")
    for body in (b"", b"\xff\xff\xff\xff", b"\2\0\0\0{}", b"\4\0\0\0null", b"\4\0\0\0[[[["):
        data = b"fuselane kernel 1\n" + hashlib.sha256(body).digest() + body
        KernelCache(own_cache).put(kernel)
        kernel_files(own_cache)[0].write_bytes(data)
        assert KernelCache(own_cache).get(kernel.key) is None
        assert kernel_files(own_cache) == []


@pytest.mark.parametrize("call", ["open", "replace", "scandir", "fdopen"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.EIO])
def test_failing_system_calls(
    own_cache: Path, call: str, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is there all the same, nothing half-written is left, and there is one warning."""
    own_cache.mkdir(mode=0o700)
    cache = KernelCache(own_cache)

    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(os, call, fail)
        for name in ("a", "b"):
            kernel = make(name)
            assert cache.get_or_build(kernel.key, lambda kernel=kernel: kernel) is kernel  # type: ignore[misc]
    assert [str(w.message) for w in caught] == [
        f"Fuselane cannot keep kernels in {own_cache}: {os.strerror(error)}."
    ]
    left = {path.suffix for path in own_cache.iterdir()}
    assert left <= ({".kernel"} if call == "scandir" else set())


_FULL_DISK = """
import resource, sys, warnings
from pathlib import Path
from tests.runtime.test_cache import KernelCache, make
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
cache = KernelCache(Path(sys.argv[1]))
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    for name, size in (("small", 100), ("large", 100_000), ("another", 100_000)):
        kernel = make(name, size)
        assert cache.get_or_build(kernel.key, lambda: kernel) is kernel
assert ["File too large" in str(w.message) for w in caught] == [True], caught
"""


def test_a_file_that_can_only_be_begun(own_cache: Path) -> None:
    subprocess.run([sys.executable, "-c", _FULL_DISK, str(own_cache)], check=True, timeout=120)
    assert [path.name for path in own_cache.iterdir()] == [f"{make('small', 100).key}.kernel"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.runtime.test_cache import KernelCache, make
os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
KernelCache(Path(sys.argv[1])).put(make("killed"))
"""


def test_a_writer_killed_in_the_middle(own_cache: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _KILLED, str(own_cache)])
    assert writer.wait(timeout=120) == -signal.SIGKILL
    (left,) = own_cache.iterdir()
    assert left.name.startswith(".tmp-")
    kernel = make("killed")
    assert KernelCache(own_cache).get(kernel.key) is None
    os.utime(left, (1, 1))
    KernelCache(own_cache).put(kernel)
    assert [path.name for path in own_cache.iterdir()] == [f"{kernel.key}.kernel"]


_WRITER = """
import sys
from pathlib import Path
from fuselane.codegen.llvm import HostTarget
from fuselane.runtime.cache import KernelCache
from fuselane.runtime.kernel import Kernel, compute_key
target = HostTarget(triple="t", cpu="c", features="")
for turn in range(40):
    cache = KernelCache(Path(sys.argv[1]), disk_bytes=400_000)
    for i in range(12):
        key = compute_key(str(i))
        kernel = Kernel(key=key, symbol="s", object_code=bytes([i]) * 50_000, num_tiles=1,
                        max_threads=0, target=target)
        found = cache.get_or_build(key, lambda: kernel)
        assert found == kernel, i
"""


def test_processes_at_once(own_cache: Path) -> None:
    """Three processes write, read and evict the same few kernels; who writes next makes room for
    what two of them wrote at once."""
    writers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", _WRITER, str(own_cache)])
        for _ in range(3)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    for path in kernel_files(own_cache):
        assert Kernel.from_bytes(path.read_bytes()).key == path.stem
    last = KernelCache(own_cache, disk_bytes=400_000)
    last.put(make("last"))
    assert last.disk_usage()[1] <= 400_000
