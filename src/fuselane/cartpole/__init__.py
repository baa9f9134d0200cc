"""The CartPole case study: four ways to write the loop in JAX, and other tools running the same."""
