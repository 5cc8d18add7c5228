"""The policy: loading it, sampling from it, and its forward passes."""
