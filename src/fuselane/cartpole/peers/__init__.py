"""The same CartPole loop in other tools, each a process that answers on standard output."""
