"""What a program of the suite is."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

Built = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that `jax.jit` takes, and its arguments."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much work: independent lanes (or whatever stands for them), and steps of the loop."""

    lanes: int
    steps: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When two engines' results agree.

    Integers and booleans have to be equal. A float may be off by `relative` times its own magnitude
    plus that of its array's average; NaNs and infinities have to be in the same places.

    Attributes:
        relative: Allowed difference of a float.
        share_apart: Share of an array's elements that may be off by more, for programs in which
            rounding decides now and then which way a lane goes.
        spread: For programs in which rounding decides everything sooner or later: allowed
            difference of an array's mean and standard deviation, in standard deviations. Elements
            are not compared one by one then.
        early_steps: Steps after which a second, shorter run is compared one by one, with no element
            apart; None for no such run.
    """

    relative: float = 1e-5
    share_apart: float = 0.0
    spread: float | None = None
    early_steps: int | None = None

    def describe(self) -> str:
        """Returns the rule in a few words."""
        close = f"floats within {self.relative:g}"
        if self.spread is not None:
            words = f"means and deviations within {self.spread:g} deviations"
        elif self.share_apart:
            words = f"{close} but for {self.share_apart:.1%} of elements"
        else:
            words = f"integers equal, {close}"
        return (
            words if self.early_steps is None else f"{words}; {close} at {self.early_steps} steps"
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program as users write it; it knows nothing about Fuselane.

    Attributes:
        name: Unique, `group/what-it-is`.
        category: One of `CATEGORIES`.
        build: Returns the function and its arguments for a size. Called after 64-bit types have
            been switched on or off, and only if all of `requires` can be imported.
        full: The size that is measured.
        quick: A tiny size, to see that it runs.
        target: How many times as fast as plain XLA it is to be; None for not slower.
        requires: Packages it imports that Fuselane does not depend on.
        x64: Whether it runs with 64-bit types.
        calls: How often it is called, through `jax.jit`, in one timing; 1 is a compiled executable.
        rule: When results agree.
    """

    name: str
    category: str
    build: Callable[[Size], Built]
    full: Size
    quick: Size
    target: float | None = None
    requires: tuple[str, ...] = ()
    x64: bool = False
    calls: int = 1
    rule: Rule = Rule()

    def rule_at(self, size: Size) -> Rule:
        """Returns the rule for a size: with few steps, no element may be apart."""
        early_steps = self.rule.early_steps
        is_early = early_steps is not None and size.steps <= early_steps
        return Rule(relative=self.rule.relative) if is_early else self.rule

    def missing(self) -> str:
        """Returns a sentence about packages that are not installed, or ""."""
        names = [name for name in self.requires if importlib.util.find_spec(name) is None]
        return f"Needs {' and '.join(names)}, not installed." if names else ""


EXACT: Final = Rule(relative=0.0)


def load(package: str) -> Any:
    """Returns an optional package's module.

    Raises:
        ModuleNotFoundError: if it is not installed, see `Program.missing`.
    """
    return importlib.import_module(package)
