"""Requests that wait, and who is next: places are shared out fairly among clients.

Pure: the queue's lock is its owner's matter.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from stratad.engine.generation import Generation


class WaitingLine:
    """Waiting requests by client."""

    def __init__(self) -> None:
        # In order of arrival, and clients in the order in which they were served last.
        self._by_client: dict[str, deque[Generation]] = {}
        self._served: dict[str, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Generation]:
        for generations in self._by_client.values():
            yield from generations

    def add(self, generation: Generation) -> None:
        """A request comes last of its client's."""
        self._by_client.setdefault(generation.request.client, deque()).append(generation)
        self._count += 1

    def remove(self, generation: Generation) -> bool:
        """Takes a request out; False when it does not wait."""
        client = generation.request.client
        waiting = self._by_client.get(client)
        if waiting is None or generation not in waiting:
            return False
        waiting.remove(generation)
        self._left(client)
        return True

    def take_next(self, running: Iterable[Generation]) -> Generation | None:
        """The first request of the client that has fewest running, of those the one served longest ago.

        A client that was never served counts as served longest ago, in order of arrival. With one client this is
        first come first served.
        """
        if not self._by_client:
            return None
        counts = Counter(generation.request.client for generation in running)
        turns = {client: turn for turn, client in enumerate(self._served)}
        client = min(self._by_client, key=lambda name: (counts[name], turns.get(name, -1)))
        generation = self._by_client[client].popleft()
        self._served.pop(client, None)
        self._served[client] = None
        self._left(client)
        self._forget_absent(counts)
        return generation

    def take_from_largest(self, newcomer: str) -> Generation | None:
        """Takes out the last request of the client that has most waiting, so that a newcomer may wait.

        None when that client would have no more waiting than the newcomer then.
        """
        client = max(self._by_client, key=lambda name: len(self._by_client[name]), default=None)
        if client is None or len(self._by_client[client]) - 1 <= len(self._by_client.get(newcomer, ())):
            return None
        generation = self._by_client[client].pop()
        self._left(client)
        return generation

    def _left(self, client: str) -> None:
        self._count -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _forget_absent(self, running: Counter[str]) -> None:
        """Keeps the turns of those only who wait or run: anybody else would be new, and clients are many."""
        self._served = {
            client: None
            for client in self._served
            if client in self._by_client or running[client] or client == next(reversed(self._served))
        }
