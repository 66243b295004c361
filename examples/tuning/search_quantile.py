"""Which quantile of the gradient norms to clip at, and how fast to follow it, by keras-tuner.

Every trial trains the small network of Lin et al. 2022 on Fashion-MNIST by DP-SGD, its clipping
norm following a private estimate of a quantile (Andrew et al. 2021), at epsilon 2.7, delta 1e-5.

    python examples/tuning/search_quantile.py
    python examples/tuning/search_quantile.py --tuner bayesian --trials 30

A sixth of the training images is held out to compare trials by. Prints the trials, the best one's
test accuracy, and the cost of the search if the data were private. An interrupted search continues
when the script is started again.
"""

import common


def main() -> None:
    """Searches target quantile and learning rate of the threshold."""
    options = common.parse_options(__doc__.splitlines()[0])
    ranges = {
        "target_quantile": (0.1, 0.9),
        "clip_norm_learning_rate": (0.05, 1.0),
        # Its initial value has little effect: it moves quickly.
        "clip_norm": (0.1, 0.1),
    }
    common.search(options, "quantile", "quantile", ranges)


if __name__ == "__main__":
    main()
