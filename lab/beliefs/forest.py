"""Random forest over the features of OLTunes' machine, the second baseline of its predictor.

Owns growing the trees with scikit-learn and everything after that: trees are plain arrays, and an own traversal walks
all rows through all of them at once, so that a dumped forest needs neither scikit-learn nor pickles. The variance of an
answer is that among the trees. It refuses to learn online: a forest is grown again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from lab.beliefs.matrix import Refitted
from solvers.domain.arrays import Floats, Whole
from solvers.domain.codec import Plain
from solvers.models.base import Facts, Groups, ModelSpec
from solvers.models.parts.seen import floats_of, ints_of, part, read
from solvers.policies.oltunes.features import Vocabulary, feature_rows
from solvers.policies.oltunes.learned import TARGETS, USUAL_SLOWDOWN, LearnedInterference, LearnedKind, LearnedSolo

TREES = 100
_LEAF = -1
_NODE_NUMBERS = ("roots", "left", "right", "feature")
_NODE_VALUES = ("threshold", "value")
_ROWS_AT_ONCE = 4096
_VARIANCE_MIN = 1e-4
"""Trees that all agree are not certain: a hundredth of the targets' deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """All trees in one list of nodes. A leaf has `left` = -1 and `value` per target; other nodes send a row to `left`
    where its feature is at most the threshold, to `right` otherwise.
    """

    roots: Whole
    left: Whole
    right: Whole
    feature: Whole
    threshold: Floats
    value: Floats

    def answers(self, features: Floats) -> Floats:
        """What every tree says of every row: row x tree x target."""
        # scikit-learn grows trees on single precision; thresholds lie between such numbers.
        seen = features.astype(np.float32).ravel()
        node = np.tile(self.roots, len(features))
        row_start = np.repeat(np.arange(len(features)) * features.shape[1], len(self.roots))
        # Walks end at very different depths, so those that have arrived are left out of the next step.
        walking = np.arange(len(node))
        while len(walking):
            here = node[walking]
            inner = self.left[here] != _LEAF
            walking, here = walking[inner], here[inner]
            goes_left = seen[row_start[walking] + self.feature[here]] <= self.threshold[here]
            node[walking] = np.where(goes_left, self.left[here], self.right[here])
        return self.value[node].reshape(len(features), len(self.roots), -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRegressor(Refitted):
    """A forest with its vocabulary; no trees before the first fit."""

    seed: int
    targets: int
    vocabulary: Vocabulary
    trees: Trees | None = None

    knows_variance: ClassVar[bool] = True
    """The spread among the trees."""

    def fitted(self, groups: Groups, targets: Floats, facts: Facts) -> ForestRegressor:
        vocabulary = Vocabulary(roles=self.vocabulary.roles).grown(groups.members)
        features = feature_rows(groups, vocabulary, facts).dense(vocabulary.width)
        return replace(self, vocabulary=vocabulary, trees=_grown(features, targets, self.seed))

    def predict(self, groups: Groups, facts: Facts) -> tuple[Floats, Floats | None]:
        """Standardised targets: mean and variance over the trees."""
        if self.trees is None:
            return np.zeros((len(groups), self.targets)), np.ones((len(groups), self.targets))
        features = feature_rows(groups, self.vocabulary, facts).dense(self.vocabulary.width)
        means, variances = [np.zeros((0, self.targets))], [np.zeros((0, self.targets))]
        for start in range(0, len(features), _ROWS_AT_ONCE):
            said = self.trees.answers(features[start : start + _ROWS_AT_ONCE])
            means.append(said.mean(axis=1))
            variances.append(said.var(axis=1) + _VARIANCE_MIN)
        return np.concatenate(means), np.concatenate(variances)

    def dump(self) -> Plain:
        trees: Plain = None
        if self.trees is not None:
            trees = {name: getattr(self.trees, name).tolist() for name in (*_NODE_NUMBERS, *_NODE_VALUES)}
        return {"seed": self.seed, "targets": self.targets, "vocabulary": self.vocabulary.dump(), "trees": trees}

    @staticmethod
    def load(plain: Plain) -> ForestRegressor:
        trees = part(plain, "trees")
        return ForestRegressor(
            seed=cast("int", part(plain, "seed")),
            targets=cast("int", part(plain, "targets")),
            vocabulary=Vocabulary.load(part(plain, "vocabulary")),
            trees=None if trees is None else _read(trees),
        )


def _read(plain: Plain) -> Trees:
    roots, left, right, feature = (read(plain, name, ints_of) for name in _NODE_NUMBERS)
    threshold, value = (read(plain, name, floats_of) for name in _NODE_VALUES)
    return Trees(roots=roots, left=left, right=right, feature=feature, threshold=threshold, value=value)


def _grown(features: Floats, targets: Floats, seed: int) -> Trees:
    from sklearn.ensemble import RandomForestRegressor

    # One target has to come without its column, or scikit-learn warns.
    wanted = targets[:, 0] if targets.shape[1] == 1 else targets
    forest = RandomForestRegressor(n_estimators=TREES, random_state=seed).fit(features, wanted)
    trees = [estimator.tree_ for estimator in forest.estimators_]
    roots = np.cumsum([0, *(int(tree.node_count) for tree in trees)])[:-1]

    def linked(name: str) -> Whole:
        children = [np.asarray(getattr(tree, name), dtype=np.int64) for tree in trees]
        return np.concatenate(
            [np.where(part == _LEAF, _LEAF, part + root) for part, root in zip(children, roots, strict=True)]
        )

    return Trees(
        roots=roots.astype(np.int64),
        left=linked("children_left"),
        right=linked("children_right"),
        # Leaves name no feature; 0 keeps the look-up in range.
        feature=np.concatenate([np.maximum(np.asarray(tree.feature, dtype=np.int64), 0) for tree in trees]),
        threshold=np.concatenate([np.asarray(tree.threshold, dtype=np.float64) for tree in trees]),
        value=_leaf_values(trees),
    )


def _leaf_values(trees: list[Any]) -> Floats:
    """Values where walks end, to a millionth of the targets' deviation; other nodes need none. Keeps dumps short."""
    value = np.concatenate([np.asarray(tree.value, dtype=np.float64)[:, :, 0] for tree in trees])
    leaf = np.concatenate([np.asarray(tree.children_left) == _LEAF for tree in trees])
    return np.where(leaf[:, None], value.round(6), 0.0)


ALONE = LearnedKind(
    model=LearnedSolo,
    spec=ModelSpec(name="rf", version="1", formula="random forest of 100 trees", quantities=TARGETS),
    fresh=lambda seed: ForestRegressor(seed=seed, targets=len(TARGETS), vocabulary=Vocabulary(roles=1)),
    read=ForestRegressor.load,
)
"""`rf` for replicas alone: latency and throughput."""
BESIDE = LearnedKind(
    model=LearnedInterference,
    usual=USUAL_SLOWDOWN,
    spec=ModelSpec(name="rf", version="1", formula="random forest of 100 trees"),
    fresh=lambda seed: ForestRegressor(seed=seed, targets=1, vocabulary=Vocabulary(roles=2)),
    read=ForestRegressor.load,
)
"""`rf` for slowdowns of members of groups."""
