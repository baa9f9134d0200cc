#!/usr/bin/env bash
# Everything there is to see on a machine with an NVIDIA GPU, in about nine minutes: correctness, CartPole, strategies, the suite.
#
#     benchmarks/gpu.sh [--packages FOLDER] [--seconds S] [--results FOLDER] [--dry]
#
# Uses the Python in $PYTHON (default python3) and the JAX it has (0.10.2 or later, with CUDA); downloads nothing. Writes
# benchmarks/results/gpu-DATE-DEVICE.json and .md, and copies both to $OUT if that is set. What is missing is left out and named;
# without a GPU the files say so. --dry rehearses every part on the CPU, as small as it gets, and leaves files only with --results.
set -u
here="$(cd "$(dirname "$0")" && pwd)" || exit
export PYTHONPATH="$here/../src:$here:$here/..${PYTHONPATH:+:$PYTHONPATH}"
export FUSELANE_GPU=1 XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=3
exec "${PYTHON:-python3}" -m card.run "$@"
