"""Imagenette: 13,394 photographs of ten easy classes of ImageNet (Howard 2019)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.datasets.image_data import ImageData
from keras_adaclip.datasets.sources import first_available, local_source, tfds_source

_FILES = "the unpacked `imagenette2-160/`, `imagenette2-320/` or `imagenette2/`"
_PUBLISHED_AT = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz"
# The larger ones are for images of more than 160 pixels.
_FOLDERS = ("imagenette2-160", "imagenette2-320", "imagenette2")
_SPLITS = ("train", "val")
# Tench, English springer, cassette player, chain saw, church, French horn, garbage truck, gas pump,
# golf ball, parachute: classes 0 to 9.
CLASSES = (
    "n01440764",
    "n02102040",
    "n02979186",
    "n03000684",
    "n03028079",
    "n03394916",
    "n03417042",
    "n03425413",
    "n03445777",
    "n03888257",
)


def load_imagenette(image_size: int = 160) -> ImageData:
    """Imagenette: 9,469 training and 3,925 test photographs, 10 classes.

    Each image is resized until its shorter side has `image_size` pixels, and the square in its
    middle is kept: bytes of shape `(image_size, image_size, 3)`.

    Looked for in this order:

    1. in the folder that the environment variable `KERAS_ADACLIP_DATA` names: the unpacked folder
       of an archive of <https://github.com/fastai/imagenette>, `imagenette2-160/` (shorter side
       160 pixels), `imagenette2-320/` or `imagenette2/`, with `train/` and `val/`;
    2. TensorFlow Datasets, `imagenette/160px-v2` (`pip install keras-adaclip[datasets]`).

    Args:
        image_size: height and width, in pixels.

    Raises:
        FileNotFoundError: where none has it; the message says what each answered.
        ImportError: where Pillow, which reads the images, is missing.
        ValueError: where `image_size` is not positive, or a local folder is incomplete.
    """
    if image_size < 1:
        raise ValueError(
            f"Argument `image_size` must be at least 1. Received: image_size={image_size}"
        )
    parts, origin = first_available(
        "Imagenette",
        (
            local_source(lambda folder: _read(folder, image_size), _FILES),
            tfds_source(
                "imagenette/160px-v2",
                lambda rows: _from_rows(rows, image_size),
                splits=("train", "validation"),
                published_at=_PUBLISHED_AT,
            ),
        ),
        _FILES,
    )
    x_train, y_train, x_test, y_test = parts
    source = f"Imagenette, {len(x_train):,} + {len(x_test):,} images ({origin})"
    return ImageData(x_train, y_train, x_test, y_test, source)


def _read(folder: Path, image_size: int) -> list[np.ndarray] | None:
    found = next((folder / name for name in _FOLDERS if (folder / name).is_dir()), None)
    if found is None:
        return None
    parts = []
    for split in _SPLITS:
        paths = [
            (path, label)
            for label, name in enumerate(CLASSES)
            for path in sorted((found / split / name).glob("*.JPEG"))
        ]
        missing = set(range(len(CLASSES))) - {label for _, label in paths}
        if missing:
            names = ", ".join(CLASSES[label] for label in sorted(missing))
            raise ValueError(f"{found / split} has no images (*.JPEG) of {names}.")
        images, labels = zip(*paths, strict=True)
        pictures = _pillow()
        parts += [
            np.stack([_square(pictures.open(path), image_size) for path in images]),
            np.asarray(labels, np.int32),
        ]
    return parts


def _from_rows(
    rows: Mapping[str, Iterable[Mapping[str, Any]]], image_size: int
) -> list[np.ndarray]:
    pictures = _pillow()
    parts = []
    for split in rows.values():
        images, labels = zip(
            *(
                (_square(pictures.fromarray(row["image"]), image_size), row["label"])
                for row in split
            ),
            strict=True,
        )
        parts += [np.stack(images), np.asarray(labels, np.int32)]
    return parts


def _square(image: Any, size: int) -> np.ndarray:
    """The middle of a Pillow image, its shorter side being `size`, as bytes of three colours."""
    with image:
        scale = size / min(image.size)
        width, height = (max(size, round(scale * side)) for side in image.size)
        resized = image.convert("RGB").resize((width, height))
        left, top = (width - size) // 2, (height - size) // 2
        return np.asarray(resized.crop((left, top, left + size, top + size)))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Pillow is needed to read Imagenette: pip install keras-adaclip[datasets]"
        ) from error
    return Image
