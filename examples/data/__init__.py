"""The data sets of the examples.

Each loader reads the files in Keras's cache (`~/.keras/datasets`), and downloads them there once if
they are missing. If a server does not answer, the error names the file and where to put it. Only
`load_fashion_mnist` returns other data instead, and says so in `source`.
"""

from .adult import ADULT_CATEGORIES, ADULT_NUMBERS, load_adult
from .images import load_cifar10, load_fashion_mnist, load_imagenette, load_mnist
from .imdb import load_imdb
from .labelled_data import LabelledData
from .made_up import make_up_images, make_up_table, make_up_texts
from .texts import load_reviews, load_texts

__all__ = [
    "ADULT_CATEGORIES",
    "ADULT_NUMBERS",
    "LabelledData",
    "load_adult",
    "load_cifar10",
    "load_fashion_mnist",
    "load_imagenette",
    "load_imdb",
    "load_mnist",
    "load_reviews",
    "load_texts",
    "make_up_images",
    "make_up_table",
    "make_up_texts",
]
