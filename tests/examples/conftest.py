"""The example project is a separate repository, and some of its tests must fail; `tests/bench/testing` runs it."""

collect_ignore = ["filter_project"]
