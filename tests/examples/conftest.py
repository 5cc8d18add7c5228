"""The example project is a repository of its own, some of whose tests are to fail: `tests/bench/testing` runs it."""

collect_ignore = ["filter_project"]
