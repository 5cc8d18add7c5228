"""Sessions inside a session."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All that a session inside this one uses: what it loads first is forgotten with it, and torch loads only once."""
    import thiefbench.testing.collection
    import thiefbench.testing.fixture  # noqa: F401
    from tests.bench import tiny
    from thiefbench import registry
    from thiefbench.testing import recorded

    tiny.run(tiny.suite(), tmp_path_factory.mktemp("loaded"))
    recorded.replay(lambda: registry.make("defense", "blacklist"), "text")
