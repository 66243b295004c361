"""The best clipping norm of each epoch by greedy search (Lin et al. 2022, algorithm 1)."""
