"""What may explain an entry below the paper's, each with the one change that tests it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """An entry of a table and what is changed in it.

    Args:
        experiment: the entry's, a key of `EXPERIMENTS`.
        method: a key of `METHODS`.
        epsilon: the budget.
        about: the change, in words.
        changes: other values of fields of the run.
        settings: other values of the method's hyperparameters.
    """

    experiment: str
    method: str
    epsilon: float
    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)


CHECKS = (
    Check("paper", "fixed", 2.7, "learning rate 8 instead of 1", {"learning_rate": 8.0}),
    Check("paper", "fixed", 2.7, "60 epochs instead of 20", {"epochs": 60}),
    Check("paper", "power", 2.7, "learning rate 8 instead of 1", {"learning_rate": 8.0}),
    Check("paper", "quantile", 2.7, "tanh instead of ReLU", {"activation": "tanh"}),
    Check("tuned", "tempered", 1.5, "norm 0.7 instead of 1.4", settings={"clip_norm": 0.7}),
    Check(
        "tuned",
        "adaclip",
        4.5,
        "variances between 1e-5 and 1e-3, not ten times larger",
        settings={"min_variance": 1e-5, "max_variance": 1e-3},
    ),
    Check("small", "fixed", 1.0, "learning rate 4 instead of 1", {"learning_rate": 4.0}),
)
