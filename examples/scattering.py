"""The scattering transform of small images: fixed features that depend on no other data.

    S0 = x * phi,   S1 = |x * psi_a| * phi,   S2 = ||x * psi_a| * psi_b| * phi

with Morlet wavelets psi at two scales and eight orientations, and a Gaussian phi four pixels apart
(Bruna & Mallat 2013). The features of an image depend on that image alone, so a model that is
trained on them with DP-SGD keeps its guarantee for the images. They agree to 0.3% with Kymatio's
`Scattering2D(J=2, L=8)`, but need NumPy only: Kymatio 0.3 does not import with SciPy 1.17.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

NUM_ORIENTATIONS = 8
NUM_CHANNELS = 1 + 2 * NUM_ORIENTATIONS + NUM_ORIENTATIONS**2
_STRIDE = 4
_CHUNK = 250


def scattering(images: np.ndarray) -> np.ndarray:
    """Orders 0, 1 and 2 of the scattering transform at two scales.

    Args:
        images: float array of shape `(num_images, size, size)`, the size a multiple of 4.

    Returns:
        float32 array of shape `(num_images, 81, size // 4, size // 4)`.
    """
    padded = np.pad(images.astype(np.float32), ((0, 0), (4, 4), (4, 4)), "reflect")
    size = padded.shape[-1]
    fine, coarse = (_wavelets(size, scale) for scale in (0, 1))
    spectrum = np.fft.fft2(padded)[:, None]
    first = np.abs(np.fft.ifft2(spectrum * fine))
    second = np.abs(np.fft.ifft2(_halved(spectrum * coarse)))
    deeper = (np.fft.fft2(first)[:, :, None] * coarse).reshape(len(images), -1, size, size)
    both = np.abs(np.fft.ifft2(_halved(deeper)))
    parts = [
        _smoothed(padded[:, None], 1),
        _smoothed(first, 1),
        _smoothed(second, 2),
        _smoothed(both, 2),
    ]
    return np.concatenate(parts, axis=1)


def normalized(maps: np.ndarray, offset: float = 1e-3) -> np.ndarray:
    """Logarithms of each image's maps, their mean subtracted, then scaled to unit length.

    Args:
        maps: float array of shape `(num_images, channels, height, width)`, not negative except for
            rounding.
        offset: number added inside the logarithm.

    Returns:
        float32 array of shape `(num_images, channels * height * width)`.
    """
    rows = np.log(np.maximum(maps, 0.0) + np.float32(offset)).reshape(len(maps), -1)
    rows -= rows.mean(axis=1, keepdims=True)
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + np.float32(1e-6))


def features(images: np.ndarray, cache: Path | None = None) -> np.ndarray:
    """Compute normalized scattering features, or read them from a file.

    Args:
        images: float array of shape `(num_images, size, size, 1)`.
        cache: the `.npy` file to read or write; None always computes them.

    Returns:
        float32 array of shape `(num_images, 81 * (size // 4) ** 2)`.
    """
    if cache is not None and cache.exists():
        return np.load(cache)
    chunks = [images[i : i + _CHUNK, :, :, 0] for i in range(0, len(images), _CHUNK)]
    with ThreadPoolExecutor() as pool:
        rows = np.concatenate(list(pool.map(lambda chunk: normalized(scattering(chunk)), chunks)))
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.save(cache, rows)
    return rows


def smooth_subspace(map_size: int, max_frequency: int = 4, max_harmonic: int = 2) -> np.ndarray:
    """An orthonormal basis of the maps that vary slowly over place and orientation.

    Args:
        map_size: height and width of a map.
        max_frequency: highest sum of the two frequencies of the cosine transform over places.
        max_harmonic: highest harmonic of the Fourier series over orientations.

    Returns:
        float32 array of shape `(dimensions, 81 * map_size ** 2)`, the rows orthonormal.
    """
    places = _unit(
        np.cos(np.pi * np.outer(np.arange(map_size), np.arange(map_size) + 0.5) / map_size)
    )
    places = np.stack(
        [
            np.outer(places[i], places[j]).ravel()
            for i in range(map_size)
            for j in range(map_size)
            if i + j <= max_frequency
        ]
    )
    angles = np.arange(NUM_ORIENTATIONS) * 2 * np.pi / NUM_ORIENTATIONS
    waves = [np.ones(NUM_ORIENTATIONS)]
    for harmonic in range(1, max_harmonic + 1):
        waves += [np.cos(harmonic * angles), np.sin(harmonic * angles)]
    turns = _unit(np.stack(waves))
    blocks = (np.ones((1, 1)), turns, turns, np.kron(turns, turns))
    return np.kron(_block_diagonal(blocks), places).astype(np.float32)


def _wavelets(size: int, scale: int) -> np.ndarray:
    """Fourier transforms of the Morlet wavelets of one scale, shape `(8, size, size)`."""
    place = np.arange(-2 * size, 3 * size)
    down, right = np.meshgrid(place, place, indexing="ij")
    width, frequency, slant = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, 4 / NUM_ORIENTATIONS
    bank = []
    for turn in range(NUM_ORIENTATIONS):
        angle = (NUM_ORIENTATIONS // 2 - 1 - turn) * np.pi / NUM_ORIENTATIONS
        along = down * np.cos(angle) + right * np.sin(angle)
        across = right * np.cos(angle) - down * np.sin(angle)
        envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
        envelope *= slant / (2 * np.pi * width**2)
        wave = envelope * np.exp(1j * frequency * along)
        wave -= envelope * wave.sum() / envelope.sum()
        periodic = wave.reshape(5, size, 5, size).sum(axis=(0, 2))
        bank.append(np.fft.fft2(periodic).real)
    return np.stack(bank).astype(np.float32)


def _halved(spectrum: np.ndarray) -> np.ndarray:
    """The spectrum of every second pixel."""
    half = spectrum.shape[-1] // 2
    return spectrum.reshape(*spectrum.shape[:-2], 2, half, 2, half).mean(axis=(-4, -2))


def _smoothed(maps: np.ndarray, spacing: int) -> np.ndarray:
    """Gaussian averages, four pixels apart, of maps whose pixels lie `spacing` apart."""
    size = maps.shape[-1] * spacing
    centres = np.arange(_STRIDE, size - _STRIDE, _STRIDE)
    distance = centres[:, None] - spacing * np.arange(maps.shape[-1])
    weight = sum(np.exp(-((distance + turn * size) ** 2) / (2 * 1.6**2)) for turn in (-1, 0, 1))
    weight = (weight / weight.sum(axis=1, keepdims=True)).astype(np.float32)
    return weight @ maps @ weight.T


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _block_diagonal(blocks: tuple[np.ndarray, ...]) -> np.ndarray:
    whole = np.zeros([sum(block.shape[axis] for block in blocks) for axis in (0, 1)])
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole
