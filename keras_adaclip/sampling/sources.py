"""Sources of examples on disk: images in folders, and examples that were written to a file."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_adaclip._checks import check_choice, check_integer
from keras_adaclip.sampling.rows import PARTS, Parts, as_row, copy_example, empty_rows, parts_of

_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
_MODES = {"rgb": "RGB", "rgba": "RGBA", "grayscale": "L"}
_FILE = "examples.h5"
_NAMES = "names"
_ROWS_AT_A_TIME = 64
_BYTES_OF_A_CHUNK = 1 << 16


class ImageFolder:
    """Images in one folder for each class, which `from_folder` returns.

    Attributes:
        class_names: The names of the folders, in the order of their numbers.
        paths: The files, class by class.
        labels: The class number of each file, int64 of shape `(num_images,)`.
    """

    def __init__(self, path: Path, image_size: tuple[int, int] | None, mode: str) -> None:
        self.class_names = sorted(each.name for each in path.glob("[!.]*") if each.is_dir())
        files = [
            (file, number)
            for number, name in enumerate(self.class_names)
            for file in sorted((path / name).rglob("*"))
            if file.suffix.lower() in _SUFFIXES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        self.paths = [str(file) for file, _ in files]
        self.labels = np.array([number for _, number in files], np.int64)
        self._image_size, self._mode = image_size, _MODES[mode]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        with Image.open(self.paths[index]) as image:
            if self._image_size is None:
                pixels = image.convert(self._mode)
            else:
                size = self._image_size[::-1]
                # JPEG files are decoded at a fraction of their size, if that is large enough.
                image.draft(self._mode, size)
                pixels = image.convert(self._mode).resize(size, Image.Resampling.BILINEAR)
            array = np.asarray(pixels)
        return (array[:, :, None] if array.ndim == 2 else array), int(self.labels[index])

    def __repr__(self) -> str:
        return f"ImageFolder(num_images={len(self)}, num_classes={len(self.class_names)})"


def from_folder(
    path: Any, *, image_size: tuple[int, int] | None = None, color_mode: str = "rgb"
) -> ImageFolder:
    """Return a source of the images in a folder that has one folder for each class.

    Args:
        path: The folder. Classes are numbered in the order of the names of its folders. Files and
            folders whose names begin with a dot are left out.
        image_size: Height and width to which images are resized, or None to leave them as they
            are, which must then be of one size.
        color_mode: `"rgb"`, `"rgba"` or `"grayscale"`.

    Returns:
        A source for `PoissonDataset.from_source`: entry `i` is an image, uint8 of shape `(height,
        width, channels)`, and its class number. Attribute `class_names` has the names.

    Raises:
        ImportError: If Pillow is not installed.
        TypeError: If `image_size` is not a pair of integers.
        ValueError: If there is no folder, no image in it, or an argument is out of range.

    Example:

    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     Image.new("RGB", (40, 30)).save(folder / name / "0.png")
    >>> images = from_folder(folder, image_size=(32, 32))
    >>> images, images.class_names, images[1][0].shape, images[1][1]
    (ImageFolder(num_images=2, num_classes=2), ['cat', 'dog'], (32, 32, 3), 1)
    """
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "`from_folder` reads images with Pillow: `pip install pillow`, or the extra `images`."
        ) from error
    check_choice("color_mode", color_mode, tuple(_MODES))
    if image_size is not None:
        if not isinstance(image_size, (tuple, list)) or len(image_size) != 2:
            raise TypeError(
                "Argument `image_size` must be a pair of integers, height and width. "
                f"Received: image_size={image_size!r}"
            )
        height, width = (check_integer("image_size", each, minimum=1) for each in image_size)
        image_size = height, width
    images = ImageFolder(Path(path), image_size, color_mode)
    if not len(images):
        raise ValueError(
            "The path must be a folder with one folder of images for each class, of the kinds "
            f"{', '.join(sorted(_SUFFIXES))}. Received: {str(path)!r}, with "
            f"{len(images.class_names)} folders"
        )
    return images


class WrittenSource:
    """Examples in a folder that `write_source` made, for `PoissonDataset.from_source`.

    Each array of an example is a data set of one HDF5 file, of shape `(num_examples, ...)`.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: If the folder holds no written examples, or not all of them.
        OSError: If the file is not complete.
    """

    def __init__(self, path: Any) -> None:
        self.path = Path(path)
        # The file is there once all examples are written.
        # Without a cache of chunks, a row is read without its neighbors.
        file = h5py.File(self.path / _FILE, "r", rdcc_nbytes=0)
        names = keras.tree.lists_to_tuples(json.loads(file.attrs[_NAMES]))
        self._parts = keras.tree.map_structure(file.__getitem__, names)

    def __len__(self) -> int:
        return len(keras.tree.flatten(self._parts)[0])

    def __getitem__(self, index: int) -> Any:
        rows = keras.tree.map_structure(lambda array: array[index], self._parts)
        return tuple(rows.get(name) for name in PARTS)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"WrittenSource(num_examples={len(self)})"


def write_source(examples: Iterable[Any], path: Any) -> WrittenSource:
    """Write examples to a file, one after another, and return them as a source.

    For examples that have no numbers, such as those of a generator or a `tf.data.Dataset`:
    `PoissonDataset.from_source` can then draw from the file. `WrittenSource(path)` opens it again.

    Args:
        examples: Examples as for `PoissonDataset.from_source`, not batches.
        path: A folder, which is made if it is missing. The arrays are not compressed.

    Raises:
        FileExistsError: If the folder already holds written examples.
        TypeError: If an example holds strings, or a dict with keys other than strings.
        ValueError: If there is no example, or one has another form than the first.

    Example:

    >>> import tempfile
    >>> source = write_source(((i / 2, i % 2) for i in range(100)), tempfile.mkdtemp())
    >>> len(source), source[3]
    (100, (np.float32(1.5), np.int64(1), None))
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / _FILE).exists():
        raise FileExistsError(
            "The folder already holds written examples. Give another, or open them with "
            f"`keras_adaclip.sampling.WrittenSource(path)`. Received: {str(path)!r}"
        )
    # The file has its name once it is complete.
    unfinished = folder / f"{_FILE}.unfinished"
    with h5py.File(unfinished, "w") as file:
        waiting: Parts = {}
        length = 0
        for example in examples:
            parts = parts_of(example, length)
            if not waiting:
                waiting = empty_rows(as_row(parts), _ROWS_AT_A_TIME)
                datasets = _make_datasets(file, waiting)
            copy_example(waiting, length % _ROWS_AT_A_TIME, parts, length)
            length += 1
            if length % _ROWS_AT_A_TIME == 0:
                _append(datasets, waiting, length)
        if not waiting:
            raise ValueError("There must be an example to write. Received: no example")
        _append(datasets, waiting, length)
    os.replace(unfinished, folder / _FILE)
    return WrittenSource(folder)


def _make_datasets(file: h5py.File, parts: Parts) -> list[h5py.Dataset]:
    """Make an empty data set for each array, and note which part of an example it is."""
    arrays = keras.tree.flatten(parts)
    names = keras.tree.pack_sequence_as(parts, [str(number) for number in range(len(arrays))])
    file.attrs[_NAMES] = json.dumps(names)
    if keras.tree.lists_to_tuples(json.loads(file.attrs[_NAMES])) != names:
        raise TypeError("The keys of dicts must be strings for examples to be written.")
    datasets = []
    for number, array in enumerate(arrays):
        shape, bytes_of_row = array.shape[1:], max(1, array.nbytes // len(array))
        rows = max(1, _BYTES_OF_A_CHUNK // bytes_of_row)
        options = {"maxshape": (None, *shape), "chunks": (rows, *shape)}
        datasets.append(file.create_dataset(str(number), (0, *shape), array.dtype, **options))
    return datasets


def _append(datasets: list[h5py.Dataset], parts: Parts, length: int) -> None:
    """Write the first rows of a stack, as many as bring the data sets to a length."""
    for dataset, rows in zip(datasets, keras.tree.flatten(parts), strict=True):
        written = len(dataset)
        dataset.resize(length, axis=0)
        dataset[written:] = rows[: length - written]
