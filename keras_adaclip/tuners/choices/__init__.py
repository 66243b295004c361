"""The choices of private training as hyperparameters of any keras-tuner search."""
