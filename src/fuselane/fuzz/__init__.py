"""Random programs that both plain XLA and Fuselane run, and that must give the same results."""
