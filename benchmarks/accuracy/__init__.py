"""The clipping methods of the literature, compared on one data set: Lin et al. 2022, rebuilt.

Each of the questions has one table: `data_sets.DATA_SETS`, `networks.NETWORKS`,
`methods.METHODS` and `experiments.EXPERIMENTS`. A new one is one entry there.
"""
