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

See `lanes` for ticks, lanes and events. Numbers of rows, steps, ticks and events are rounded up, so
that a compiler sees few shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_adaclip.federated.lanes import Schedule
from keras_adaclip.sampling import padding


@dataclass(frozen=True)
class RoundClient:
    """What a client brings to a round.

    Args:
        examples: The examples that take part, by name.
        order: The rows of each local batch, of shape `(num_steps, batch_size)`, -1 for padding.
        seeds: The seed of each local step, or None.
        weight: The weight of its contribution, between 0 and 1.
    """

    examples: dict[str, Any]
    order: np.ndarray
    seeds: np.ndarray | None
    weight: float = 1.0

    @property
    def num_steps(self) -> int:
        """The number of local steps."""
        return len(self.order)

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return len(keras.tree.flatten(self.examples)[0])


@dataclass(frozen=True)
class ClientElsewhere:
    """A client that another process trains.

    Args:
        num_steps: The number of local steps.
        num_rows: The number of examples that take part.
        process: The number of the process.
    """

    num_steps: int
    num_rows: int
    process: int


def round_batch(
    clients: Sequence[RoundClient | ClientElsewhere],
    first: dict[str, Any],
    batch_size: int | None,
    has_seeds: bool,
    num_lanes: int,
    num_shards: int,
    process: int = 0,
    num_processes: int = 1,
) -> dict[str, Any]:
    """Return the batch of some clients, or a process's part of it.

    Args:
        clients: The clients of all processes, each with at least one example.
        first: An example, for shapes and types.
        batch_size: The number of examples in a local batch; None takes all of a client.
        has_seeds: Whether local steps have seeds.
        num_lanes: The number of lanes on each device.
        num_shards: The number of devices of each process.
        process: The number of this process.
        num_processes: The number of processes.
    """
    of_process: list[list[int]] = [[] for _ in range(num_processes)]
    for number, client in enumerate(clients):
        at = client.process if isinstance(client, ClientElsewhere) else process
        of_process[at].append(number)
    num_steps = [client.num_steps for client in clients]
    schedule = Schedule.of(num_steps, num_lanes * num_shards, of_process)
    of_shards = [
        schedule.lanes[at : at + num_lanes] for at in range(0, len(schedule.lanes), num_lanes)
    ]
    own = of_shards[process * num_shards : (process + 1) * num_shards]
    batch = _room_for(clients, schedule, of_shards, len(own), first, batch_size, has_seeds)
    event_of = {end: event for event, end in enumerate(schedule.events)}
    for shard, lanes in enumerate(own):
        next_row = next_step = 0
        for lane, numbers in enumerate(lanes):
            for number in numbers:
                client = clients[number]
                assert isinstance(client, RoundClient)
                rows = slice(next_row, next_row + client.num_rows)
                steps = slice(next_step, next_step + client.num_steps)
                tables = keras.tree.flatten({name: batch[name] for name in first})
                values = keras.tree.flatten({name: client.examples[name] for name in first})
                for table, of_client in zip(tables, values, strict=True):
                    table[shard, rows] = of_client
                width = client.order.shape[1]
                places = np.where(client.order >= 0, client.order + next_row, -1)
                batch["order"][shard, steps, :width] = places
                if client.seeds is not None:
                    batch["seeds"][shard, steps] = client.seeds
                first_tick, end = schedule.first_ticks[number], schedule.ends[number]
                batch["step"][shard, first_tick:end, lane] = np.arange(steps.start, steps.stop)
                batch["ends"][shard, event_of[end], lane] = True
                batch["weight"][shard, event_of[end], lane] = client.weight
                next_row, next_step = rows.stop, steps.stop
    return batch


def rounded_up(number: int) -> int:
    """Return the next power of two.

    >>> [rounded_up(number) for number in (0, 1, 2, 3, 4, 5, 9)]
    [1, 1, 2, 4, 4, 8, 16]
    """
    return 1 << max(number - 1, 0).bit_length()


def _room_for(
    clients: Sequence[RoundClient | ClientElsewhere],
    schedule: Schedule,
    of_shards: Sequence[Sequence[Sequence[int]]],
    num_shards: int,
    first: dict[str, Any],
    batch_size: int | None,
    has_seeds: bool,
) -> dict[str, Any]:
    """Return a batch of padding with room for some clients, and the events of their schedule.

    Args:
        clients: As for `round_batch`.
        schedule: The schedule of the clients.
        of_shards: The lanes of each device of all processes.
        num_shards: The number of devices of this process.
        first: As for `round_batch`.
        batch_size: As for `round_batch`.
        has_seeds: As for `round_batch`.
    """
    members = [[clients[number] for lane in lanes for number in lane] for lanes in of_shards]
    num_lanes = len(of_shards[0])
    # Of the device with the most.
    num_rows = max(sum(client.num_rows for client in each) for each in members)
    num_steps = rounded_up(max(sum(client.num_steps for client in each) for each in members))
    most_rows = max((client.num_rows for client in clients), default=0)
    events = schedule.events.tolist()
    num_ticks, num_events = rounded_up(max(events, default=0)), rounded_up(len(events))

    def room(example: np.ndarray) -> np.ndarray:
        """Return room for the rows of all clients."""
        return padding((num_shards, _roomy(num_rows), *example.shape[1:]), example.dtype)

    batch: dict[str, Any] = keras.tree.map_structure(room, first)
    width = batch_size or rounded_up(most_rows)
    batch["order"] = np.full((num_shards, num_steps, width), -1, np.int32)
    if has_seeds:
        batch["seeds"] = np.zeros((num_shards, num_steps, 2), np.int32)
    batch["step"] = np.full((num_shards, num_ticks, num_lanes), -1, np.int32)
    batch["until"] = np.zeros((num_shards, num_events), np.int32)
    batch["until"][:, : len(events)] = events
    batch["ends"] = np.zeros((num_shards, num_events, num_lanes), bool)
    batch["weight"] = np.ones((num_shards, num_events, num_lanes), np.float32)
    batch["num_events"] = np.full(num_shards, len(events), np.int32)
    return batch


def _roomy(number: int) -> int:
    """Return the next power of two, or three quarters of it if these suffice.

    >>> [_roomy(number) for number in (0, 1, 3, 4, 5, 7, 13)]
    [1, 1, 3, 4, 6, 8, 16]
    """
    power = rounded_up(number)
    return power * 3 // 4 if power >= 4 and number <= power * 3 // 4 else power
