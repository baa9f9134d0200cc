"""Tests of the kernel cache, the FFI handler, the hook and the switches."""
