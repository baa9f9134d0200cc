"""Orders in which everything comes after what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from fuselane.errors import VerificationError

_T = TypeVar("_T", bound=Hashable)


def post_order(items: Iterable[_T], dependencies: Callable[[_T], Sequence[_T]]) -> list[_T]:
    """Returns `items`, and all they depend on, each once and after its dependencies.

    Stable: items that are in such an order already come back in that order.

    Raises:
        VerificationError: if an item depends on itself.
    """
    order: dict[_T, None] = {}
    for item in items:
        for dependency in dependencies(item):
            if dependency not in order:
                _append_with_dependencies(item, dependencies, order)
                break
        else:
            order[item] = None
    return list(order)


def _append_with_dependencies(
    item: _T, dependencies: Callable[[_T], Sequence[_T]], order: dict[_T, None]
) -> None:
    path = [(item, iter(dependencies(item)))]
    entered = {item}
    while path:
        top, rest = path[-1]
        for dependency in rest:
            if dependency in order:
                continue
            if dependency in entered:
                raise VerificationError(f"{dependency} depends on itself.")
            below = dependencies(dependency)
            for needed in below:
                if needed not in order:
                    break
            else:
                order[dependency] = None
                continue
            entered.add(dependency)
            path.append((dependency, iter(below)))
            break
        else:
            order[top] = None
            path.pop()
