"""Every test has a cache of its own."""

from tests.isolation import clean_state, own_cache

__all__ = ["clean_state", "own_cache"]
