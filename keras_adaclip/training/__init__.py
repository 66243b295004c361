"""What models of examples and models of clients share: examination, runs, saved state."""
