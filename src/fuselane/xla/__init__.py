"""Driving the real XLA: what it did to a program, pass by pass, on a CPU or for any GPU model."""
