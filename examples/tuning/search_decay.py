"""How fast the clipping norm should fall, and from where, by keras-tuner.

Every trial trains the small network of Lin et al. 2022 on Fashion-MNIST by DP-SGD at epsilon 2.7
and delta 1e-5. Its clipping norm falls like a power of the epoch, as that paper proposes:
`clip_norm / epoch ** decay_power`.

    python examples/tuning/search_decay.py
    python examples/tuning/search_decay.py --tuner bayesian --trials 30

A sixth of the training images is held out to compare trials by. Prints the trials, the best one's
test accuracy, and the cost of the search if the data were private. An interrupted search continues
when the script is started again.
"""

import common


def main() -> None:
    """Searches power and initial norm."""
    options = common.parse_options(__doc__.splitlines()[0])
    ranges = {"clip_norm": (0.1, 3.0), "decay_power": (0.3, 0.6)}
    common.search(options, "decay", "power", ranges)


if __name__ == "__main__":
    main()
