"""Flower is tested where it is installed; `make test-flower` has an environment for it."""

import importlib.util

# It imports Flower, which runs it.
collect_ignore = ["app"]
if not importlib.util.find_spec("flwr"):
    collect_ignore_glob = ["test_*.py"]
