"""The callback that `fit` adds to keep the ledger."""

from keras_adaclip.callbacks import PassCounter


class Optimizer:
    def __init__(self):
        self.calls = []

    def begin_pass(self):
        self.calls.append("pass")


class Model:
    def __init__(self):
        self.optimizer = Optimizer()


def test_opens_once_and_begins_passes():
    for every_epoch, expected in ((True, ["open", "pass", "pass"]), (False, ["open"])):
        model = Model()
        calls = model.optimizer.calls
        counter = PassCounter(lambda calls=calls: calls.append("open"), every_epoch)
        counter.set_model(model)
        counter.on_train_begin()
        for epoch in range(3):
            counter.on_epoch_begin(epoch)
        assert calls == expected
