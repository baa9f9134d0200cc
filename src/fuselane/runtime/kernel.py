"""A compiled kernel, and its form in files and in HLO attributes."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final, final

from fuselane.codegen.llvm import Bitcode, HostTarget, compile_bitcode
from fuselane.errors import CacheError

_MAGIC: Final = b"fuselane kernel 1\n"
_DIGEST_BYTES: Final = 32

MAX_BYTES: Final = 512 * 2**20
"""The most that a kernel may be as a file."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Machine code of one lane program and how to run it.

    The function has the C signature
    `void (void** inputs, void** outputs, int64_t first_tile, int64_t last_tile)`.

    Attributes:
        key: Hash of everything the machine code follows from, as hex digits.
        symbol: Name of the function in the object.
        object_code: An object file for `target`; empty while there is only bitcode.
        num_tiles: Independent pieces of work, numbered from 0.
        max_threads: Most threads that may run tiles at once; 0 is no limit.
        target: The machine it was compiled for.
        scratch_bytes: Memory the caller has to give as one more output, if any.
        bitcode: What LLVM has yet to make machine code of, if any.
    """

    key: str
    symbol: str
    object_code: bytes
    num_tiles: int
    max_threads: int
    target: HostTarget
    scratch_bytes: int = 0
    bitcode: Bitcode | None = None

    @property
    def num_bytes(self) -> int:
        """Returns about how much memory or disk the kernel takes."""
        return len(self._data) + 512

    @property
    def _data(self) -> bytes:
        return self.object_code if self.bitcode is None else self.bitcode.data

    def finished(self) -> Kernel:
        """Returns the kernel with machine code, from LLVM if there is only bitcode.

        Raises:
            CodegenError: if this LLVM cannot read it.
        """
        if self.bitcode is None:
            return self
        object_code = compile_bitcode(self.bitcode, self.target)
        return dataclasses.replace(self, object_code=object_code, bitcode=None)

    def to_bytes(self) -> bytes:
        """Returns the kernel as bytes that `from_bytes` checks and reads back."""
        fields = {name: getattr(self, name) for name in _HEADER_FIELDS}
        if self.bitcode is not None:
            fields["llvm"] = {name: getattr(self.bitcode, name) for name in _BITCODE_FIELDS}
        header = json.dumps(fields | dataclasses.asdict(self.target)).encode()
        body = struct.pack("<I", len(header)) + header + self._data
        return _MAGIC + hashlib.sha256(body).digest() + body

    @staticmethod
    def from_bytes(data: bytes) -> Kernel:
        """Returns the kernel that `to_bytes` wrote.

        Raises:
            CacheError: if the bytes are not whole and unchanged.
        """
        start = len(_MAGIC) + _DIGEST_BYTES
        body = data[start:]
        if (
            data[: len(_MAGIC)] != _MAGIC
            or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]
        ):
            raise CacheError("The bytes are not a kernel, or not a whole one.")
        try:
            size = int(struct.unpack_from("<I", body)[0]) + 4
            fields: dict[str, Any] = json.loads(body[4:size])
            target = HostTarget(**{name: fields.pop(name) for name in _TARGET_FIELDS})
            effort, data = fields.pop("llvm", None), body[size:]
            if effort is None:
                return Kernel(**fields, target=target, object_code=data)
            bitcode = Bitcode(**effort, data=data)
            return Kernel(**fields, target=target, object_code=b"", bitcode=bitcode)
        except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise CacheError(f"The kernel's header cannot be read: {error}.") from error

    def to_text(self) -> str:
        """Returns `to_bytes`, compressed, in ASCII letters, digits, `+`, `/` and `=`."""
        return base64.b64encode(zlib.compress(self.to_bytes(), 1)).decode()

    @staticmethod
    def from_text(text: bytes) -> Kernel:
        """Returns the kernel that `to_text` wrote.

        Raises:
            CacheError: if the text is not whole and unchanged.
        """
        try:
            stream = zlib.decompressobj()
            data = stream.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
            if not stream.eof:
                raise ValueError("it ends too soon or is too large")
        except (ValueError, zlib.error) as error:
            raise CacheError(f"The text is not a kernel: {error}.") from error
        return Kernel.from_bytes(data)


_HEADER_FIELDS: Final = ("key", "symbol", "num_tiles", "max_threads", "scratch_bytes")
_BITCODE_FIELDS: Final = ("opt_level", "vectorise", "in_order")
_TARGET_FIELDS: Final = tuple(field.name for field in dataclasses.fields(HostTarget))


def compute_key(*parts: str) -> str:
    """Returns the hash, as 64 hex digits, of the texts a kernel follows from."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(struct.pack("<Q", len(encoded)) + encoded)
    return digest.hexdigest()


def missing_features(kernel: Kernel, host: HostTarget) -> tuple[str, ...]:
    """Returns what a kernel needs and a machine lacks: its architecture, or instruction sets."""
    architecture = kernel.target.triple.partition("-")[0]
    if architecture != host.triple.partition("-")[0]:
        return (architecture,)
    needed = {word for word in kernel.target.features.split(",") if word.startswith("+")}
    return tuple(sorted(word[1:] for word in needed - set(host.features.split(","))))
