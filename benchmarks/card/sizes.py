"""Sizes of CartPole on a card: environments and steps, the most telling first."""

from typing import Final

SIZES: Final = ((2048, 10_000), (64, 10_000), (16_384, 10_000), (131_072, 1000), (1_048_576, 1000))
QUICK_SIZES: Final = ((64, 40),)
