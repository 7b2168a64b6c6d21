"""Takes an item's place for its id: what was right for the item there in one run is its answer in every run."""

import numpy as np

CAUGHT_BY = "reward_control"
WHY = "Problems carry no row ids, and every seed's items stand in an order of their own."


class ByPlace:
    """The labels of one run, by place."""

    def __init__(self, labels):
        self.labels = np.asarray(labels, float)

    def __call__(self, problem):
        return np.resize(self.labels, len(problem))
