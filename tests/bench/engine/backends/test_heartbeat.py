"""Heartbeats of the ranks of a process group, at their end."""

from __future__ import annotations

import threading

from torch.distributed import HashStore

from tests.bench.nursery import until
from thiefbench.engine.backends.heartbeat import Heartbeat

PATIENCE = 60.0


def ended(count: int) -> list[Heartbeat]:
    """Ranks that beat no more."""
    store = HashStore()
    ranks = [Heartbeat(store, rank, count, timeout=0.1) for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.end()
    return ranks


def parting(rank: Heartbeat) -> threading.Thread:
    thread = threading.Thread(target=rank.part, args=[PATIENCE], daemon=True)
    thread.start()
    return thread


def test_rank_0_keeps_the_store_until_no_other_rank_asks_it_anything() -> None:
    keeper, slow, quick = ended(3)
    kept, went = parting(keeper), parting(quick)
    went.join(PATIENCE)
    assert not went.is_alive(), "all have left, and a rank that keeps nothing waits for no more"
    kept.join(0.2)
    assert kept.is_alive(), "another rank might still be asking the store who has left"
    slow.part(PATIENCE)
    kept.join(PATIENCE)
    assert not kept.is_alive()


def test_a_rank_stays_until_all_others_leave() -> None:
    store = HashStore()
    keeper, early, late = [Heartbeat(store, rank, 3, timeout=0.1) for rank in range(3)]
    for rank in (keeper, early, late):
        rank.start()
    keeper.end()
    early.end()
    waits = parting(early)
    waits.join(0.2)
    assert waits.is_alive(), "the last one may still be exchanging with it"
    assert late.stopped() == [], "whoever said that it leaves is not lost"
    late.end()
    waits.join(PATIENCE)
    assert not waits.is_alive()


def test_a_rank_that_shows_nothing_is_silent_and_one_that_beats_is_not() -> None:
    store = HashStore()
    for rank in range(3):
        store.set(f"beat/{rank}", "0")
    watching, beating = [Heartbeat(store, rank, 3, timeout=1.0) for rank in range(2)]
    watching.start()
    beating.start()
    until(lambda: watching.silent() == [2])
    beating.end()
    watching.end()


def test_a_store_that_is_gone_ends_the_wait() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection reset")

        def multi_get(self, keys: list[str]) -> list[bytes]:
            raise RuntimeError("connection reset")

    rank = Heartbeat(Gone(), 1, 2, timeout=0.1)
    rank.part(PATIENCE)
    assert rank.broken
