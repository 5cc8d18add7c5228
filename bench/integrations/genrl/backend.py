"""GenRL's communication over a DHT on the loopback interface."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from thiefbench.integrations.genrl.library import DHT, HivemindBackend, packer, unpacker_settings

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
PAUSE = 0.2
"""Seconds between two looks at the DHT while other peers are awaited."""


class _PatientDHT(DHT):  # type: ignore[misc]
    """A DHT whose `get` pauses: GenRL asks in a loop without a pause, which takes a processor core from its peers."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(PAUSE)
        return super().get(*args, **kwargs)


class LoopbackBackend(HivemindBackend):  # type: ignore[misc]
    """GenRL's `HivemindBackend`, listening on 127.0.0.1 only; the original listens on all interfaces.

    GenRL's own methods pack, store, await and unpack messages: msgpack with two known types, no pickles.

    Args:
        initial_peers: multiaddresses of peers to join; None starts a new swarm.
        world_size: for how many peers `all_gather_object` waits; it may change during the wait.
        timeout: seconds that it waits at most, and that an object stays in the DHT.
        max_buffer_size: the largest object that is unpacked, in bytes.

    Attributes:
        gathered: what the last `all_gather_object` returned, by peer id.
        wall: seconds that the last `all_gather_object` took.
    """

    def __init__(
        self,
        initial_peers: Sequence[str] | None = None,
        world_size: int = 1,
        timeout: float = 600,
        max_buffer_size: int = 100 * 1024 * 1024,
    ) -> None:
        # Not super().__init__(), which makes a DHT on 0.0.0.0: these are the attributes that it sets in version 0.3.0.
        self.world_size = world_size
        self.timeout = timeout
        self.bootstrap = initial_peers is None
        self.beam_size = 1000
        self.dht = _PatientDHT(
            start=True,
            host_maddrs=[LOOPBACK],
            initial_peers=None if initial_peers is None else list(initial_peers),
            dht_mode="server",
            force_reachability="public",
            use_auto_relay=False,
            use_relay=False,
            nat_port_map=False,  # asks routers, from sockets on other addresses, to let others in
            startup_timeout=60,
        )
        self.step_ = 0
        self.get_retries = None
        self.max_buffer_size = max_buffer_size
        self.packer = packer()
        self.unpacker_kwargs = unpacker_settings(max_buffer_size)
        self.gathered: dict[str, Any] = {}
        self.wall = 0.0

    def all_gather_object(self, obj: Any) -> dict[str, Any]:
        """The messages of all peers, by peer id; see GenRL."""
        began = time.monotonic()
        self.gathered = {}
        self.gathered = super().all_gather_object(obj)
        self.wall = time.monotonic() - began
        return self.gathered

    @property
    def addresses(self) -> list[str]:
        """Multiaddresses with which others can join."""
        return [str(address) for address in self.dht.get_visible_maddrs(latest=True)]
