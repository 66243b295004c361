"""Private classification of handwritten digits: MNIST at epsilon 2.93.

The network and the budget of Lin et al. 2022, by DP-SGD (Abadi et al. 2016): each step draws images
at random, clips the gradient of each one to a norm, and adds noise to their sum.

    python examples/mnist.py

**Expected**: this script was run with `--smoke` only, on made-up images. Lin et al. report, in
table 2 at epsilon 2.93, test accuracies of 97.2% with a fixed norm, 94.0% with quantile clipping,
97.7% with a power decay and 98.1% with transferred norms. On Fashion-MNIST, which has as many
images of the same size, the same training takes a minute on two cores.

**Data**: Keras downloads it; without a network, see `docs/examples.md`.
"""

from data import LabelledData, load_mnist, make_up_images
from fashion_mnist import build_model
from private_classification import TUNED_FOR_TABLE_B1, Task, main

"""
## What to choose

Epsilon and batch size are the paper's. Its delta, one over the number of images, is what publishing
an image outright would have; ours is smaller. Learning rates, epochs and norms are those that
suited the same network on Fashion-MNIST (`docs/accuracy.md`): the paper's own, learning rate 1 and
the norms of its table D1, did not come near its figures there.
"""

TASK = Task(
    title="MNIST",
    epsilon=2.93,
    delta=1e-5,
    batch_size=1024,
    trainings=TUNED_FOR_TABLE_B1,
    networks=("b1", "b3"),
)

"""
## The data

60,000 training and 10,000 test images of 28x28 pixels, divided by 255: a constant, so nothing of
the images goes into it. The test images are taken to be public.
"""


def load(is_smoke: bool) -> LabelledData:
    """The digits, or made-up images of their shape."""
    return make_up_images("MNIST", (28, 28, 1)) if is_smoke else load_mnist()


"""
## The network

That of `fashion_mnist.py`: table B1 of the paper, or with `--network b3` table B3.

`--clipping transfer` takes norms that were found on other, public images. The paper finds those for
MNIST on Fashion-MNIST, as `examples/tuning/greedy_schedule.py` can.
"""

if __name__ == "__main__":
    main(__doc__, TASK, load, lambda options: build_model(options.network))
