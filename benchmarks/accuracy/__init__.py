"""The clipping methods of the literature compared on one data set, as in Lin et al. 2022.

A new data set, network, method or experiment is one entry in `data_sets.DATA_SETS`,
`networks.NETWORKS`, `methods.METHODS` or `experiments.EXPERIMENTS`.
"""
