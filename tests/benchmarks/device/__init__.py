"""The parts of `tests/benchmarks/device.py`."""
