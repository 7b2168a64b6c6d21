"""The README's example of an estimator made of another library's parts: scikit-learn's projection and similarity."""

from sklearn.metrics.pairwise import cosine_similarity
from sklearn.random_projection import SparseRandomProjection

from pytest_behaviortrace import needs


@needs(gradients=True)
def projected(problem):
    """Cosine of each item's gradient with the target, both in fewer dimensions."""
    width, seed = min(1024, problem.gradients.shape[1]), int(problem.rng.integers(2**31))
    projection = SparseRandomProjection(width, dense_output=True, random_state=seed)
    items = projection.fit_transform(problem.gradients)
    target = projection.transform(problem.target[None])
    return cosine_similarity(items, target)[:, 0]
