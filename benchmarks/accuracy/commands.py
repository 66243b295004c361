"""What the commands of `compare.py` do."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from . import driver, figures, tables
from . import greedy as searching
from .context import GRID_SEED, Cell, Context
from .data_sets import DATA_SETS, images, public_images
from .driver import STAGES, Stage
from .experiments import EXPERIMENTS
from .methods import METHODS
from .results import ResultsFile
from .runs import Scale

_SMOKE_SCALE = Scale(batch_size=64, num_train=512)
_SMOKE_STAGES = (
    Stage("paper", (1,), driver.FIRST),
    Stage("grid", (GRID_SEED,)),
    Stage("tuned", (1,), driver.FIRST),
)


def context(folder: Path) -> Context:
    """The plans with what the folder holds: finished runs and transferred thresholds."""
    return Context(transferred=searching.load(folder), results=ResultsFile(folder).read())


def stages(experiments: list[str] | None, network: str | None) -> tuple[Stage, ...]:
    """The stages of the experiments that are asked for.

    Raises:
        ValueError: if an experiment is unknown.
    """
    unknown = set(experiments or ()) - set(EXPERIMENTS)
    if unknown:
        raise ValueError(f"Unknown experiments: {sorted(unknown)}. Known: {sorted(EXPERIMENTS)}")
    return tuple(
        stage
        for stage in STAGES
        if (experiments is None or stage.experiment in experiments)
        and network in (None, EXPERIMENTS[stage.experiment].network)
    )


def greedy(
    public_data: Path,
    data_set: str,
    network: str,
    folder: Path,
    scale: Scale,
    num_searches: int = 1,
) -> None:
    """Finds the thresholds to transfer, at the budget at which the network is compared most."""
    epsilons = next(e.epsilons for e in EXPERIMENTS.values() if e.network == network)
    epsilon = epsilons(DATA_SETS[data_set].epsilons)[0]
    settings = searching.Search(network=network, epsilon=epsilon, num_searches=num_searches)
    public = public_images(public_data, DATA_SETS[data_set].num_train)
    searching.search(settings, public, folder, scale, data_set)


def run(
    context: Context,
    folder: Path,
    scale: Scale,
    stages: tuple[Stage, ...] = STAGES,
    minutes: float = math.inf,
) -> bool:
    """Makes the missing runs; whether none is missing in the end."""
    for network in sorted({EXPERIMENTS[stage.experiment].network for stage in stages}):
        without = [m for m in context.methods if METHODS[m].needs_search]
        if without and network not in context.transferred:
            print(
                f"Left out on network {network}: {', '.join(without)}. They need thresholds from "
                f"public data: `greedy --network {network}`"
            )
    print(images(context.data_set, "test", scale.num_train).source, flush=True)
    return driver.work(context, ResultsFile(folder), scale, stages, minutes)


def write_tables(context: Context, folder: Path, stages: tuple[Stage, ...] = STAGES) -> str:
    """Writes `tables.md`, and returns its text."""
    text = tables.report(context, stages)
    (folder / "tables.md").write_text(text, encoding="utf-8")
    return text


def write_figures(context: Context, folder: Path, stages: tuple[Stage, ...] = STAGES) -> list[Path]:
    """Writes the figures, and returns their paths."""
    return figures.draw(context, folder, stages)


def smoke(folder: Path) -> None:
    """Every step of the comparison, on a little data."""
    data = images("fashion_mnist", "validation", _SMOKE_SCALE.num_train)
    public = folder / "public.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(public, x=(255.0 * data.x_train[..., 0]).astype(np.uint8), y=data.y_train)
    search = searching.Search(epochs=2, num_norms=3, num_first_epochs=2, num_searches=2)
    searching.search(search, public_images(public, 256), folder, _SMOKE_SCALE, "fashion_mnist")
    plans = replace(
        context(folder),
        methods=("fixed", "transfer"),
        grid=(Cell(1.0, 2, 0),),
        has_variants=False,
        longer_epochs=(),
        last_seeds=(GRID_SEED,),
        paper_epochs=2,
    )
    run(plans, folder, _SMOKE_SCALE, _SMOKE_STAGES)
    plans = replace(plans, results=ResultsFile(folder).read())
    print(write_tables(plans, folder, _SMOKE_STAGES))
    print(*write_figures(plans, folder, _SMOKE_STAGES), sep="\n")
