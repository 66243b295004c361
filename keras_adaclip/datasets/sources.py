"""Where data sets come from: one source after another, and what each of them said.

The order is the same for all: the folder that `KERAS_ADACLIP_DATA` names, Keras's own copy, other
places, TensorFlow Datasets. No source gives way to another data set.
"""

import http.client
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "KERAS_ADACLIP_DATA"
_WAIT_SECONDS = 20.0


class UnavailableError(Exception):
    """A source does not have the data set; the message says why."""


@dataclass(frozen=True)
class Source:
    """A place that may have a data set.

    Args:
        name: the place, in words.
        load: returns what it has; raises `UnavailableError` where it has nothing. Other errors are
            not caught: a file that is there and broken is not passed over.
    """

    name: str
    load: Callable[[], Any]


def first_available(data_set: str, sources: Sequence[Source], remedy: str) -> tuple[Any, str]:
    """What the first source that has the data set gives, and the name of that source.

    Args:
        data_set: name of the data set.
        sources: places to look, in this order.
        remedy: which files to put where.

    Raises:
        FileNotFoundError: where no source has it; the message says what each of them answered.
        ValueError: where a local file is broken.
    """
    answers: list[str] = []
    for source in sources:
        try:
            return source.load(), source.name
        except UnavailableError as error:
            answers.append(f"  {len(answers) + 1}. {source.name}: {error}")
    raise FileNotFoundError(
        f"{data_set} is not available here. Tried, in this order:\n"
        + "\n".join(answers)
        + f"\nPut {remedy} into a folder, name the folder by the environment variable "
        f"{FOLDER_VARIABLE}, and run again; or run again where there is a network."
    )


def local_source(read: Callable[[Path], Any], files: str) -> Source:
    """The folder that `KERAS_ADACLIP_DATA` names.

    Args:
        read: from the folder to the data set; None where the folder has no such files.
        files: what is looked for, in words.
    """

    def load() -> Any:
        name = os.environ.get(FOLDER_VARIABLE)
        if not name:
            raise UnavailableError(f"{FOLDER_VARIABLE} is not set")
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise UnavailableError(f"{folder}, which {FOLDER_VARIABLE} names, is no folder")
        found = read(folder)
        if found is None:
            raise UnavailableError(f"{folder} has no {files}")
        return found

    return Source(f"the folder of {FOLDER_VARIABLE}", load)


def keras_source(load_data: Callable[[], Any]) -> Source:
    """Keras's copy: what it has downloaded before, or downloads now.

    Args:
        load_data: one of Keras's `load_data` functions.
    """

    def load() -> Any:
        try:
            with time_limit(_WAIT_SECONDS):
                return load_data()
        # Keras raises a bare `Exception` where a download fails.
        except Exception as error:
            raise UnavailableError(f"{type(error).__name__}: {error}") from error

    return Source("Keras's copy", load)


def tfds_source(
    name: str,
    read: Callable[[Mapping[str, Iterable[Mapping[str, Any]]]], Any],
    *,
    splits: Sequence[str] = ("train", "test"),
    published_at: str | None,
) -> Source:
    """TensorFlow Datasets: what it has prepared before, or prepares now.

    Args:
        name: name of the data set there, with its configuration.
        read: from the rows of each split, dicts of arrays, to the data set.
        splits: the splits to read, the training data first.
        published_at: the address that it downloads from. It is asked for an answer first, as
            TensorFlow Datasets itself goes on trying for minutes. None never downloads.
    """

    def load() -> Any:
        try:
            import tensorflow_datasets
        except ImportError as error:
            raise UnavailableError(
                "tensorflow-datasets is not installed: pip install keras-adaclip[datasets]"
            ) from error
        try:
            builder = tensorflow_datasets.builder(name)
            if not builder.is_prepared():
                if published_at is None:
                    raise UnavailableError(f"{builder.data_dir} has not been prepared")
                require_answer(published_at)
                builder.download_and_prepare()
            rows = {
                split: tensorflow_datasets.as_numpy(builder.as_dataset(split=split))
                for split in splits
            }
            return read(rows)
        except UnavailableError:
            raise
        # Whatever is wrong with it, the next source may do.
        except Exception as error:
            raise UnavailableError(f"{type(error).__name__}: {error}") from error

    return Source("TensorFlow Datasets", load)


def require_answer(address: str, seconds: float = _WAIT_SECONDS) -> None:
    """Raises `UnavailableError` where a server does not answer in time.

    Args:
        address: an address of the server, http or https.
        seconds: how long to wait.
    """
    request = urllib.request.Request(address, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=seconds):
            return
    except urllib.error.HTTPError:
        return  # An answer, if not a kind one.
    except (OSError, http.client.HTTPException) as error:
        host = urllib.parse.urlsplit(address).hostname
        raise UnavailableError(f"{host} does not answer ({error})") from error


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Bounds how long a connection may stay silent, so that no network means no long wait.

    Args:
        seconds: how long.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
