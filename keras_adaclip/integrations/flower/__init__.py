"""Federated training over the nodes of Flower: real ones, or those of its simulation.

private_strategy   `PrivateStrategy`, the server: draws clients, adds noise, keeps the ledger
node_app           `client_app`, the nodes: train clients, clip and add up
node_directory     which node holds which client
messages           what travels between server and nodes
"""

import importlib
from typing import Any

__all__ = ["PrivateStrategy", "client_app"]

_MODULES = {"PrivateStrategy": "private_strategy", "client_app": "node_app"}


def __getattr__(name: str) -> Any:
    """Return a part of the integration; Flower is imported on demand.

    Raises:
        ImportError: If Flower is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        importlib.import_module("flwr.serverapp")
    except ImportError as error:
        raise ImportError(
            "Flower 1.42 or later is needed for `keras_adaclip.integrations.flower`: "
            "pip install keras-adaclip[flower], in an environment of its own if other packages "
            "pin what Flower pins."
        ) from error
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
