"""Lanes: where and when each client of a round trains.

Clients train side by side in lanes, one after another in each. A client takes one tick of its lane
for each local step. After some ticks an *event* collects the contributions of the clients that have
just taken their last step; the next client of such a lane begins with the server's weights. So a
round takes about as long as its local steps, however unequal the clients are.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A tick costs as much as the work of so many lanes before a lane does anything.
_COST_OF_TICK = 4
# Another number of lanes may have to be compiled, and must be worth it.
_WORTH_A_CHANGE = 1.3


@dataclass(frozen=True)
class Schedule:
    """The lanes of a round.

    Args:
        lanes: The numbers of the clients of each lane, in their order.
        first_ticks: The first tick of each client.
        ends: The tick after the last one of each client.
    """

    lanes: tuple[tuple[int, ...], ...]
    first_ticks: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(
        cls, num_steps: Sequence[int], num_lanes: int, groups: Sequence[Sequence[int]] | None = None
    ) -> "Schedule":
        """Return lanes of about equal length.

        Args:
            num_steps: The number of local steps of each client, positive.
            num_lanes: The number of lanes of each group.
            groups: The numbers of the clients that train together, on lanes of their own, such as
                those of a process. None is one group of all.

        Example:

        >>> Schedule.of([2, 5, 1, 2], num_lanes=2).lanes
        ((1,), (0, 3, 2))
        """
        groups = [range(len(num_steps))] if groups is None else groups
        lanes: list[list[int]] = [[] for _ in range(num_lanes * len(groups))]
        first_ticks = np.zeros(len(num_steps), np.int64)
        for group, clients in enumerate(groups):
            ends = [(0, lane) for lane in range(group * num_lanes, (group + 1) * num_lanes)]
            for client in sorted(clients, key=lambda number: -num_steps[number]):
                end, lane = heapq.heappop(ends)
                first_ticks[client] = end
                lanes[lane].append(client)
                heapq.heappush(ends, (end + num_steps[client], lane))
        return cls(tuple(map(tuple, lanes)), first_ticks, first_ticks + np.asarray(num_steps, int))

    @property
    def events(self) -> np.ndarray:
        """The ticks before which a client has ended, ascending."""
        return np.unique(self.ends)


def best_num_lanes(
    num_steps: Sequence[int], most: int, present: int | None, num_shards: int = 1
) -> int:
    """Return the number of lanes with which a round takes the least time.

    Args:
        num_steps: The number of local steps of each client.
        most: The largest number of lanes; the others are halves, quarters and so on of it.
        present: The number of lanes of the round before, or None.
        num_shards: The number of devices, each of which has so many lanes.

    Example:

    >>> best_num_lanes([3] * 100, most=25, present=None)
    25
    >>> best_num_lanes([250] + [3] * 100, most=25, present=25)
    3
    """

    def cost(num_lanes: int) -> int:
        """Return the cost of a round."""
        ticks = max(max(num_steps), math.ceil(sum(num_steps) / (num_lanes * num_shards)))
        return ticks * (num_lanes + _COST_OF_TICK)

    if not num_steps:
        return present or 1
    choices = [most >> shift for shift in range(most.bit_length())]
    best = min(choices, key=cost)
    if present is None or present > most or cost(present) > _WORTH_A_CHANGE * cost(best):
        return best
    return present
