"""Loss and metrics of single clients, as a table with percentiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_PERCENTS = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class ClientScores:
    """What `evaluate_clients` returns: loss and metrics of each client with examples.

    Args:
        client_ids: The ids of the clients.
        num_examples: The number of examples of each, of shape `(num_clients,)`.
        values: For the name of each metric, its value for each client, of shape `(num_clients,)`.

    Example:

    >>> import numpy as np
    >>> scores = ClientScores(["ann", "bob"], np.array([9, 3]), {"loss": np.array([0.5, 0.7])})
    >>> scores["bob"]
    {'num_examples': 3, 'loss': 0.7}
    >>> print(scores)
    2 clients  mean    min  5%    25%   50%  75%   95%   max
    loss       0.6     0.5  0.51  0.55  0.6  0.65  0.69  0.7
    """

    client_ids: Sequence[Any]
    num_examples: np.ndarray
    values: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.client_ids)

    def __getitem__(self, client_id: Any) -> dict[str, Any]:
        """Return the scores of one client, by the name of the metric.

        Raises:
            KeyError: If there is no such client.
        """
        if client_id not in self.client_ids:
            raise KeyError(f"There is no client {client_id!r} with examples.")
        position = list(self.client_ids).index(client_id)
        scores = {name: float(value[position]) for name, value in self.values.items()}
        return {"num_examples": int(self.num_examples[position]), **scores}

    def percentiles(self, percents: Sequence[float] = _PERCENTS) -> dict[str, np.ndarray]:
        """Return percentiles over the clients, each of which counts once.

        Args:
            percents: Numbers from 0 to 100.

        Returns:
            For the name of each metric an array with a value for each of the percents.

        Example:

        >>> import numpy as np
        >>> values = {"accuracy": np.array([0.5, 0.7, 1.0])}
        >>> ClientScores(["a", "b", "c"], np.ones(3), values).percentiles([0, 50])
        {'accuracy': array([0.5, 0.7])}
        """
        return {name: np.nanpercentile(value, percents) for name, value in self.values.items()}

    def to_dataframe(self) -> Any:
        """Return a frame of pandas with a row for each client.

        Raises:
            ImportError: If pandas is missing.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "A frame of pandas needs pandas: pip install keras-adaclip[frames]"
            ) from error
        columns = {"num_examples": self.num_examples, **self.values}
        return pandas.DataFrame(columns, index=pandas.Index(list(self.client_ids), name="client"))

    def __repr__(self) -> str:
        return f"<ClientScores of {self._counted()}: {', '.join(self.values)}>"

    def __str__(self) -> str:
        names = [f"{percent}%" for percent in _PERCENTS]
        table = [[self._counted(), "mean", "min", *names, "max"]]
        for name, found in self.percentiles((0, *_PERCENTS, 100)).items():
            table.append([name, *(f"{v:.4g}" for v in (np.nanmean(self.values[name]), *found))])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        )
        return "\n".join(lines)

    def _counted(self) -> str:
        """Return the number of clients in words."""
        return f"{len(self):,} client{'' if len(self) == 1 else 's'}"
