"""The virtual environments of the peers: where they are, and how they are made.

    python benchmarks/speed/environments.py .venv-peers

makes those that are missing, a few minutes and a few gigabytes each. On Linux a plain
`pip install torch` brings the CUDA build; TORCH_PIP_FLAGS in the environment is handed on to pip,
to name the index of the CPU build.
"""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from framework import PEERS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installation:
    """A call of `pip install`.

    Args:
        requirements: what to install.
        is_torch: whether TORCH_PIP_FLAGS are for it.
    """

    requirements: tuple[str, ...]
    is_torch: bool = False


INSTALLATIONS: dict[str, tuple[Installation, ...]] = {
    # PyTorch first: a later call leaves a build alone that is there.
    "opacus": (Installation(("torch==2.13.0",), is_torch=True), Installation(("opacus>=1.6",))),
    "jax-privacy": (Installation(("jax-privacy>=2.0",)),),
    # Its own NumPy and dp-accounting; Python 3.11 only.
    "tensorflow-privacy": (
        Installation(("tensorflow>=2.21,<2.22", "tf_keras", "tensorflow-privacy==0.9.0")),
    ),
    # For benchmarks/federated.
    "pfl": (Installation(("torch==2.13.0",), is_torch=True), Installation(("pfl>=0.6",))),
    "flower": (
        Installation(("torch==2.13.0",), is_torch=True),
        Installation(("flwr[simulation]>=1.41",)),
    ),
}


def interpreter(folder: Path, peer: str) -> Path:
    """The interpreter of a peer's environment, which need not exist.

    Args:
        folder: of all environments.
        peer: a key of `INSTALLATIONS`.
    """
    # Not resolved: the link in the environment is what makes it that environment.
    return folder.absolute() / peer / "bin" / "python"


def is_made(folder: Path, peer: str) -> bool:
    """Whether a peer's environment was made to its end, or by hand.

    Args:
        folder: of all environments.
        peer: a key of `INSTALLATIONS`.
    """
    return interpreter(folder, peer).exists() and not _unfinished(folder, peer).exists()


def commands(folder: Path, peer: str, device: str = "cpu") -> list[list[str]]:
    """What makes a peer's environment.

    Args:
        folder: of all environments.
        peer: a key of `INSTALLATIONS`.
        device: "cpu" or "gpu".
    """
    python = str(interpreter(folder, peer))
    lines = [[sys.executable, "-m", "venv", str(folder.absolute() / peer)]]
    for installation in INSTALLATIONS[peer]:
        flags = shlex.split(os.environ.get("TORCH_PIP_FLAGS", "")) if installation.is_torch else []
        lines.append([python, *_PIP, *flags, *installation.requirements])
    if peer == "jax-privacy" and device == "gpu":
        lines.append([python, *_PIP, "jax[cuda12]"])
    return lines


_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet")


def make(folder: Path, peer: str, device: str = "cpu") -> bool:
    """Makes a peer's environment where it is missing.

    Args:
        folder: of all environments.
        peer: a key of `INSTALLATIONS`.
        device: "cpu" or "gpu".

    Returns:
        Whether it is there now.
    """
    if is_made(folder, peer):
        return True
    print(f"==> Making {folder / peer}", flush=True)
    marker = _unfinished(folder, peer)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    for line in commands(folder, peer, device):
        if subprocess.run(line).returncode:
            print(f"Failed, and {peer} is left out: {shlex.join(line)}", file=sys.stderr)
            return False
    marker.unlink()
    return True


def _unfinished(folder: Path, peer: str) -> Path:
    return folder.absolute() / f".unfinished-{peer}"


def main() -> int:
    """Makes the environments that are named on the command line, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", nargs="+", choices=INSTALLATIONS, default=[*PEERS])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    options = parser.parse_args()
    made = [make(options.folder, peer, options.device) for peer in options.peers]
    return 0 if all(made) else 1


if __name__ == "__main__":
    sys.exit(main())
