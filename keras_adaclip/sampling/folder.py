"""A folder of images as a source."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip._checks import check_choice, check_integer

_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
_MODES = {"rgb": "RGB", "rgba": "RGBA", "grayscale": "L"}


class ImageFolder:
    """Images in one folder for each class, which `from_folder` returns.

    Attributes:
        class_names: The names of the folders, in the order of their numbers.
        paths: The files, class by class.
        labels: The class number of each file, int64 of shape `(num_images,)`.
    """

    def __init__(
        self, path: Path, class_names: list[str], image_size: tuple[int, int] | None, mode: str
    ) -> None:
        self.class_names = class_names
        found = [
            (file, number)
            for number, name in enumerate(class_names)
            for file in sorted((path / name).rglob("*"))
            if file.suffix.lower() in _SUFFIXES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        self.paths = [str(file) for file, _ in found]
        self.labels = np.array([number for _, number in found], np.int64)
        self._image_size, self._mode = image_size, mode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        with Image.open(self.paths[index]) as image:
            if self._image_size is not None:
                height, width = self._image_size
                # JPEG files are decoded at a fraction of their size, if that is large enough.
                image.draft(_MODES[self._mode], (width, height))
            pixels = image.convert(_MODES[self._mode])
            if self._image_size is not None:
                pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
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
    folder = Path(path)
    found = folder.iterdir() if folder.is_dir() else ()
    names = sorted(each.name for each in found if each.is_dir() and each.name[0] != ".")
    images = ImageFolder(folder, names, image_size, color_mode)
    if not len(images):
        raise ValueError(
            "The path must be a folder with one folder of images for each class, of the kinds "
            f"{', '.join(sorted(_SUFFIXES))}. Received: {str(path)!r}, with {len(names)} folders"
        )
    return images
