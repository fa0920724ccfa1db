"""The paper's theory, computed: Gram matrices, kernels, bounds (section 4 and appendix B).

It stands alone: torch, numpy and the standard library, nothing else of this package but its
errors. `study` does everything in one call; `docs/theory.md` explains it.
"""

from fedbn.theory.bounds import bound, first_violation, required_width
from fedbn.theory.checks import Comparison, Dependence, compare, dependence
from fedbn.theory.descent import Course, descend, federated_round, joint_step
from fedbn.theory.evolution import Evolution, Jacobians, evolution, jacobians, tangent_kernel
from fedbn.theory.gram import (
    Estimate,
    block_diagonal,
    gram_fedavg,
    gram_fedbn,
    least_eigenvalue,
    monte_carlo_gram,
    relu_kernel,
    spectrum,
)
from fedbn.theory.limit import start_gram
from fedbn.theory.network import Network, initial_network, loss, norms, personalise, predict
from fedbn.theory.report import Bound, Branch, Checks, Kernels, Setting, Study
from fedbn.theory.samples import Samples, pool, second_moment
from fedbn.theory.study import study
from fedbn.theory.synthetic import random_clients

__all__ = [
    "Bound",
    "Branch",
    "Checks",
    "Comparison",
    "Course",
    "Dependence",
    "Estimate",
    "Evolution",
    "Jacobians",
    "Kernels",
    "Network",
    "Samples",
    "Setting",
    "Study",
    "block_diagonal",
    "bound",
    "compare",
    "dependence",
    "descend",
    "evolution",
    "federated_round",
    "first_violation",
    "gram_fedavg",
    "gram_fedbn",
    "initial_network",
    "jacobians",
    "joint_step",
    "least_eigenvalue",
    "loss",
    "monte_carlo_gram",
    "norms",
    "personalise",
    "pool",
    "predict",
    "random_clients",
    "relu_kernel",
    "required_width",
    "second_moment",
    "spectrum",
    "start_gram",
    "study",
    "tangent_kernel",
]
