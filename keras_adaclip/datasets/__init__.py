"""Data sets that the examples share.

Each loader asks one source after another: the folder that the environment variable
`KERAS_ADACLIP_DATA` names, Keras's own copy, TensorFlow Datasets. Where none has the data set, the
error says what each of them answered and what to do. Only `load_fashion_mnist` puts another data
set in its place, and says so in `source`.
"""

from keras_adaclip.datasets.adult import load_adult
from keras_adaclip.datasets.cifar10 import load_cifar10
from keras_adaclip.datasets.fashion_mnist import load_fashion_mnist
from keras_adaclip.datasets.image_data import ImageData
from keras_adaclip.datasets.imagenette import load_imagenette
from keras_adaclip.datasets.imdb import load_imdb
from keras_adaclip.datasets.made_up import make_up_images, make_up_table, make_up_texts
from keras_adaclip.datasets.mnist import load_mnist
from keras_adaclip.datasets.table_data import TableData
from keras_adaclip.datasets.text_data import TextData

__all__ = [
    "ImageData",
    "TableData",
    "TextData",
    "load_adult",
    "load_cifar10",
    "load_fashion_mnist",
    "load_imagenette",
    "load_imdb",
    "load_mnist",
    "make_up_images",
    "make_up_table",
    "make_up_texts",
]
