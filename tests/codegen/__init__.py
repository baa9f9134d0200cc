"""What the code generator emits, run on its own and compared with XLA:CPU."""
