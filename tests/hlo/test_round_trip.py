"""What was read and not changed is written as it was, fields fuselane does not know included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fuselane.hlo import HloModule, proto, verify
from fuselane.hlo.proto import Message
from tests.hlo import programs, xla

# Field 7001: a length-delimited value; field 7002: a number. XLA has no such fields.
_UNKNOWN = b"\xca\xb5\x03\x04\xff\x00\xfe!" + b"\xd0\xb5\x03\xac\x02"


def _loop(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return jnp.tanh(carry @ row) + jnp.sort(carry), carry.sum()

    return jax.lax.scan(step, x, jnp.ones((5, 8, 8)))


def _random(x: Any) -> Any:
    key = jax.random.key(7)
    return x + jax.random.uniform(key, x.shape), jax.random.bernoulli(key)


def _data() -> Iterator[tuple[str, bytes]]:
    for name, text in programs.ALL.items():
        yield name, xla.parse(text)
    for function in (_loop, _random):
        yield f"lowered{function.__name__}", xla.lowered(function, jnp.ones((8, 8)))
        yield f"compiled{function.__name__}", xla.compiled(function, jnp.ones((8, 8)))


@pytest.fixture(scope="module")
def modules() -> dict[str, bytes]:
    return dict(_data())


def _parse(data: bytes) -> Message:
    return proto.HloModuleProto.FromString(data)


def test_nothing_changes(modules: dict[str, bytes]) -> None:
    for name, data in modules.items():
        written = HloModule.from_bytes(data).to_bytes()
        assert proto.HloModuleProto.FromString(written) == proto.HloModuleProto.FromString(data), (
            name
        )
        assert xla.to_text(written) == xla.to_text(data), name


def test_real_modules_are_valid(modules: dict[str, bytes]) -> None:
    for data in modules.values():
        verify(HloModule.from_bytes(data))


def test_shapes_are_written_as_xla_writes_them(modules: dict[str, bytes]) -> None:
    for data in modules.values():
        for computation in HloModule.from_bytes(data).computations:
            for instruction in computation.instructions:
                assert instruction.shape.to_proto() == instruction.proto.shape


def test_writing_twice_gives_the_same(modules: dict[str, bytes]) -> None:
    for data in modules.values():
        module = HloModule.from_bytes(data)
        assert module.to_bytes() == module.to_bytes()


def _messages_in(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _messages_in(inner)


def _count_unknown(data: bytes) -> int:
    return data.count(_UNKNOWN)


@pytest.mark.parametrize("name", list(programs.ALL))
def test_unknown_fields_survive_everywhere(name: str) -> None:
    message = proto.HloModuleProto.FromString(xla.parse(programs.ALL[name]))
    everywhere = list(_messages_in(message))
    for inner in everywhere:
        inner.MergeFromString(_UNKNOWN)
    written = HloModule.from_bytes(message.SerializeToString()).to_bytes()
    assert _count_unknown(written) == len(everywhere)


def test_unknown_fields_survive_edits() -> None:
    message = proto.HloModuleProto.FromString(xla.parse(programs.COUNTING_LOOP))
    everywhere = list(_messages_in(message))
    for inner in everywhere:
        inner.MergeFromString(_UNKNOWN)
    module = HloModule.from_bytes(message.SerializeToString())
    for computation in module.computations:
        computation.name += "_renamed"
        for instruction in computation.instructions:
            instruction.name += "_renamed"
    assert _count_unknown(module.to_bytes()) == len(everywhere)


def test_a_field_that_jax_writes_and_we_do_not_know_survives() -> None:
    text = programs.ALL["custom_calls"]
    assert "replica_groups={{0}}" in xla.to_text(xla.module_of(text).to_bytes())
    assert "operand_precision" in xla.to_text(xla.module_of(text).to_bytes())
    assert "may-alias" in xla.to_text(xla.module_of(programs.ALL["calls"]).to_bytes())
