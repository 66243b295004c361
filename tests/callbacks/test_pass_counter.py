"""The callback that `fit` adds to keep the ledger."""

from keras_adaclip.callbacks import PassCounter


class Optimizer:
    def __init__(self):
        self.calls = []

    def begin_epoch(self, is_pass):
        self.calls.append("pass" if is_pass else "epoch")


class Model:
    def __init__(self):
        self.optimizer = Optimizer()


def test_opens_once_and_begins_epochs():
    for every_epoch, expected in (
        (True, ["open", "pass", "pass"]),
        (False, ["open", "epoch", "epoch"]),
    ):
        model = Model()
        calls = model.optimizer.calls
        counter = PassCounter(lambda calls=calls: calls.append("open"), every_epoch)
        counter.set_model(model)
        counter.on_train_begin()
        for epoch in range(3):
            counter.on_epoch_begin(epoch)
        assert calls == expected
