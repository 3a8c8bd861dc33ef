"""A queue that keeps parked sessions in their places and out of the scheduler's way.

Between chunks a session stands in the stock scheduler's queue of those that hold blocks, and every step takes each such
session out and puts it back where it was: a cost per step that grows with the sessions that have nothing to do. Here a
parked session is counted and keeps its place, but is never at the head, so a step costs what its own sessions cost.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus


class ParkingQueue(RequestQueue):
    """First come, first served, among the requests that are not parked.

    Length and iteration cover every request, in the order of the stock queue; truth, head and pop only those that are
    ready. Whether a request is parked is read when it joins; ``unpark`` says when that ends. Joining and removal cost
    O(log n) comparisons. ``pop_request`` and ``peek_request`` raise IndexError when none is ready.
    """

    def __init__(self) -> None:
        self._places: dict[Request, int] = {}
        # (place, request), sorted. Places differ, so requests are never compared.
        self._ready: list[tuple[int, Request]] = []
        self._first, self._behind = 0, 0

    def add_request(self, request: Request) -> None:
        self._join(request, self._behind)
        self._behind += 1

    def prepend_request(self, request: Request) -> None:
        """Put ``request`` before all others, parked ones included."""
        self._first -= 1
        self._join(request, self._first)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Prepend one after the other: the last of ``requests`` comes first, as in the stock queue."""
        for request in requests:
            self.prepend_request(request)

    def _join(self, request: Request, place: int) -> None:
        self._places[request] = place
        if request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
            insort(self._ready, (place, request))

    def unpark(self, request: Request) -> None:
        """Make a parked request of this queue ready, at the place it has had all along."""
        insort(self._ready, (self._places[request], request))

    def pop_request(self) -> Request:
        _, request = self._ready.pop(0)
        del self._places[request]
        return request

    def peek_request(self) -> Request:
        return self._ready[0][1]

    def remove_request(self, request: Request) -> None:
        """Take ``request`` out, parked or not. Raises KeyError when it is not in the queue."""
        place = self._places.pop(request)
        index = bisect_left(self._ready, (place,))
        if index < len(self._ready) and self._ready[index][0] == place:
            del self._ready[index]

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of ``requests`` that are in the queue."""
        for request in requests:
            if request in self._places:
                self.remove_request(request)

    def __bool__(self) -> bool:
        return bool(self._ready)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._places, key=self._places.__getitem__))
