"""The greedy search for the clipping norm of each epoch (Lin et al. 2022, algorithm 1)."""
