"""The clients of a round as a batch for the compiled step.

A batch is a dict of arrays whose first axis counts the devices of a process that share the round.
For each of them:

    x, y        the examples of its clients, one client after the other, `(num_rows, ...)`; and
                `sample_weight`, if classes have weights
    order       the local batches: the rows of each, int32 of shape `(num_steps, batch_size)`, with
                -1 for padding
    seeds       the seed of the model's random numbers in each local step, int32 of shape
                `(num_steps, 2)`; absent if it draws none
    step        the local step that a lane takes in a tick, int32 of shape `(num_ticks, num_lanes)`,
                with -1 for none
    until       the number of ticks before each event, int32 of shape `(num_events,)`
    ends        whether a lane's client has ended at an event, bool of shape
                `(num_events, num_lanes)`
    weight      the weights of these clients, float32 between 0 and 1
    num_events  the number of events without padding, int32

Clients train side by side in lanes, one after another in each. A client takes one tick of its lane
for each local step. After some ticks an *event* collects the contributions of the clients that have
just taken their last step; the next client of such a lane begins with the server's weights. So a
round takes about as long as its local steps, however unequal the clients are. Numbers of rows,
steps, ticks and events are rounded up, so that a compiler sees few shapes.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from keras_adaclip.sampling import padding

# A tick costs as much as the work of so many lanes before a lane does anything.
_COST_OF_TICK = 4
# Another number of lanes may have to be compiled, and must be worth it.
_WORTH_A_CHANGE = 1.3


@dataclass(frozen=True)
class RoundClient:
    """What a client brings to a round; of one that another process trains, the numbers alone.

    Args:
        num_rows: The number of examples that take part.
        num_steps: The number of local steps.
        process: The number of the process that trains it.
        examples: The examples that take part, by name.
        order: The rows of each local batch, of shape `(num_steps, batch_size)`, -1 for padding.
        seeds: The seed of each local step, or None.
        weight: The weight of its contribution, between 0 and 1.
    """

    num_rows: int
    num_steps: int
    process: int = 0
    examples: dict[str, Any] = field(default_factory=dict)
    order: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int32))
    seeds: np.ndarray | None = None
    weight: float = 1.0


def in_lanes(
    num_steps: Sequence[int], num_lanes: int, groups: Sequence[Sequence[int]]
) -> tuple[list[list[int]], np.ndarray]:
    """Return lanes of about equal length.

    Args:
        num_steps: The number of local steps of each client, positive.
        num_lanes: The number of lanes of each group.
        groups: The numbers of the clients that train together, on lanes of their own: those of
            a process.

    Returns:
        The numbers of the clients of each lane, in their order; the first tick of each client.

    Example:

    >>> in_lanes([2, 5, 1, 2], 2, [range(4)])[0]
    [[1], [0, 3, 2]]
    """
    lanes: list[list[int]] = [[] for _ in range(num_lanes * len(groups))]
    first_ticks = np.zeros(len(num_steps), np.int64)
    for group, clients in enumerate(groups):
        ends = [(0, lane) for lane in range(group * num_lanes, (group + 1) * num_lanes)]
        for client in sorted(clients, key=lambda number: -num_steps[number]):
            first_ticks[client], lane = heapq.heappop(ends)
            lanes[lane].append(client)
            heapq.heappush(ends, (int(first_ticks[client]) + num_steps[client], lane))
    return lanes, first_ticks


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


def round_batch(rounds: Any, clients: Sequence[RoundClient], num_lanes: int) -> dict[str, Any]:
    """Return the batch of some clients, or a process's part of it.

    Args:
        rounds: The `CohortBatches`.
        clients: The clients of all processes, each with at least one example.
        num_lanes: The number of lanes on each device.
    """
    first, num_shards = rounds.first, rounds.num_shards
    groups = [
        [number for number, client in enumerate(clients) if client.process == process]
        for process in range(rounds.num_processes)
    ]
    num_steps = [client.num_steps for client in clients]
    lanes, first_ticks = in_lanes(num_steps, num_lanes * num_shards, groups)
    of_shards = [lanes[at : at + num_lanes] for at in range(0, len(lanes), num_lanes)]
    ends = first_ticks + np.array(num_steps, int)
    # The ticks before which a client has ended.
    events = np.unique(ends)
    members = [[clients[number] for lane in shard for number in lane] for shard in of_shards]
    # Room for the device with the most.
    num_rows = _roomy(max(sum(client.num_rows for client in each) for each in members))
    most_steps = rounded_up(max(sum(client.num_steps for client in each) for each in members))
    most_rows = max((client.num_rows for client in clients), default=0)
    num_ticks, num_events = rounded_up(int(max(events, default=0))), rounded_up(len(events))
    batch: dict[str, Any] = keras.tree.map_structure(
        lambda array: padding((num_shards, num_rows, *array.shape[1:]), array.dtype), first
    )
    width = rounds.settings.client_batch_size or rounded_up(most_rows)
    batch["order"] = np.full((num_shards, most_steps, width), -1, np.int32)
    if rounds.has_seeds:
        batch["seeds"] = np.zeros((num_shards, most_steps, 2), np.int32)
    batch["step"] = np.full((num_shards, num_ticks, num_lanes), -1, np.int32)
    batch["until"] = np.zeros((num_shards, num_events), np.int32)
    batch["until"][:, : len(events)] = events
    batch["ends"] = np.zeros((num_shards, num_events, num_lanes), bool)
    batch["weight"] = np.ones((num_shards, num_events, num_lanes), np.float32)
    batch["num_events"] = np.full(num_shards, len(events), np.int32)
    tables = keras.tree.flatten({name: batch[name] for name in first})
    first_shard = rounds.share.number * num_shards
    for shard, of_shard in enumerate(of_shards[first_shard : first_shard + num_shards]):
        next_row = next_step = 0
        for lane, numbers in enumerate(of_shard):
            for number in numbers:
                client = clients[number]
                rows = slice(next_row, next_row + client.num_rows)
                steps = slice(next_step, next_step + client.num_steps)
                values = keras.tree.flatten({name: client.examples[name] for name in first})
                for table, of_client in zip(tables, values, strict=True):
                    table[shard, rows] = of_client
                places = np.where(client.order >= 0, client.order + next_row, -1)
                batch["order"][shard, steps, : places.shape[1]] = places
                if client.seeds is not None:
                    batch["seeds"][shard, steps] = client.seeds
                event = np.searchsorted(events, ends[number])
                ticks = slice(first_ticks[number], ends[number])
                batch["step"][shard, ticks, lane] = np.arange(steps.start, steps.stop)
                batch["ends"][shard, event, lane] = True
                batch["weight"][shard, event, lane] = client.weight
                next_row, next_step = rows.stop, steps.stop
    return batch


def rounded_up(number: int) -> int:
    """Return the next power of two.

    >>> [rounded_up(number) for number in (0, 1, 2, 3, 4, 5, 9)]
    [1, 1, 2, 4, 4, 8, 16]
    """
    return 1 << max(number - 1, 0).bit_length()


def _roomy(number: int) -> int:
    """Return the next power of two, or three quarters of it if these suffice.

    >>> [_roomy(number) for number in (0, 1, 3, 4, 5, 7, 13)]
    [1, 1, 3, 4, 6, 8, 16]
    """
    power = rounded_up(number)
    return power * 3 // 4 if power >= 4 and number <= power * 3 // 4 else power
