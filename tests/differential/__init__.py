"""Whole programs under Fuselane against the same programs under plain XLA."""
