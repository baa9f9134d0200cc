"""What `benchmarks/gpu.sh` runs on a machine with an NVIDIA GPU."""
