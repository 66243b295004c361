"""Downloads by Keras that give up if a server does not answer."""

import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_SECONDS = 20.0


def cache_folder() -> Path:
    """The folder in which Keras keeps data sets."""
    return Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets"


def cached_or_downloaded(
    data_set: str, file: str, address: str, load: Callable[[], Any], seconds: float = WAIT_SECONDS
) -> Any:
    """Calls a function of Keras that reads a file from the cache or downloads it.

    Args:
        data_set: name of the data set, for the error.
        file: the file, relative to `cache_folder()`.
        address: where the file is published.
        load: reads the file, and downloads it if it is missing.
        seconds: how long the server may take to answer.

    Raises:
        FileNotFoundError: if the file is missing and cannot be downloaded.
    """
    path = cache_folder() / file
    try:
        if not path.exists():
            require_answer(address, seconds)
        with time_limit(seconds):
            return load()
    # Keras raises a bare `Exception` if a download fails.
    except Exception as error:
        if path.exists():
            raise
        raise FileNotFoundError(
            f"{data_set} is not available here ({type(error).__name__}: {error}). Run again with a "
            f"network, or download {address} and save it as {path}."
        ) from error


def require_answer(address: str, seconds: float = WAIT_SECONDS) -> None:
    """Raises an error if a server does not answer in time.

    A timeout of the socket is not enough: it applies to each address of the server separately, and
    not to the look-up of its name.

    Args:
        address: an address of the server.
        seconds: how long to wait.

    Raises:
        OSError: if there is no answer.
    """
    problems: list[Exception | None] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                problems.append(None)
        except urllib.error.HTTPError:
            problems.append(None)  # The server is there. The download tells what is wrong.
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if not problems:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    if problems[0] is not None:
        raise problems[0]


@contextmanager
def time_limit(seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Bounds how long a connection may stay silent.

    Args:
        seconds: how long.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
