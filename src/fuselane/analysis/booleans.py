"""Boolean functions of unknowns, as ordered binary decision diagrams: equal functions are one node.

    not a or (a and b)   ==   not (a and not b)      both are the same number

Source: R. E. Bryant, Graph-Based Algorithms for Boolean Function Manipulation, 1986.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, final

Node = int
"""A function; two are equal exactly if their numbers are."""

FALSE: Final[Node] = 0
TRUE: Final[Node] = 1

_MAX_NODES: Final = 20_000


class TooManyNodesError(Exception):
    """A function became too large to work with."""


@final
class Booleans:
    """Functions over unknowns that are told apart by keys."""

    def __init__(self) -> None:
        self._unknowns: dict[Hashable, int] = {}
        self._nodes: list[tuple[int, Node, Node]] = [(1 << 62, 0, 0), (1 << 62, 1, 1)]
        self._known: dict[tuple[int, Node, Node], Node] = {}
        self._choices: dict[tuple[Node, Node, Node], Node] = {}

    def unknown(self, key: Hashable) -> Node:
        """Returns the function that is the unknown with this key."""
        number = self._unknowns.setdefault(key, len(self._unknowns))
        return self._node(number, FALSE, TRUE)

    def choose(self, condition: Node, then: Node, otherwise: Node) -> Node:
        """Returns `then if condition else otherwise`.

        Raises:
            TooManyNodesError: if the functions have become too large.
        """
        if condition in (FALSE, TRUE):
            return then if condition else otherwise
        if then == otherwise:
            return then
        if then == TRUE and otherwise == FALSE:
            return condition
        key = (condition, then, otherwise)
        known = self._choices.get(key)
        if known is None:
            first = min(self._nodes[node][0] for node in key)
            low, high = (
                self.choose(*(self._restrict(node, first, side) for node in key)) for side in (0, 1)
            )
            known = self._choices[key] = self._node(first, low, high)
        return known

    def negate(self, node: Node) -> Node:
        """Returns `not node`."""
        return self.choose(node, FALSE, TRUE)

    def both(self, left: Node, right: Node) -> Node:
        """Returns `left and right`."""
        return self.choose(left, right, FALSE)

    def either(self, left: Node, right: Node) -> Node:
        """Returns `left or right`."""
        return self.choose(left, TRUE, right)

    def differ(self, left: Node, right: Node) -> Node:
        """Returns whether exactly one of the two holds."""
        return self.choose(left, self.negate(right), right)

    def _restrict(self, node: Node, unknown: int, side: int) -> Node:
        number, low, high = self._nodes[node]
        if number != unknown:
            return node
        return high if side else low

    def _node(self, unknown: int, low: Node, high: Node) -> Node:
        if low == high:
            return low
        key = (unknown, low, high)
        known = self._known.get(key)
        if known is None:
            if len(self._nodes) >= _MAX_NODES:
                raise TooManyNodesError
            known = self._known[key] = len(self._nodes)
            self._nodes.append(key)
        return known
