"""The paper's theory, computed: Gram matrices, kernels, bounds (section 4 and appendix B).

It stands alone: torch, numpy and the standard library, nothing else of this package but its
errors. `study` does everything in one call; `docs/theory.md` explains it.
"""

from fedbn.paper.theory.convergence import (
    Comparison as Comparison,
    Course as Course,
    Dependence as Dependence,
    bound as bound,
    compare as compare,
    dependence as dependence,
    descend as descend,
    federated_round as federated_round,
    first_violation as first_violation,
    joint_step as joint_step,
    required_width as required_width,
)
from fedbn.paper.theory.kernels import (
    Estimate as Estimate,
    Evolution as Evolution,
    Jacobians as Jacobians,
    block_diagonal as block_diagonal,
    evolution as evolution,
    gram_fedavg as gram_fedavg,
    gram_fedbn as gram_fedbn,
    jacobians as jacobians,
    least_eigenvalue as least_eigenvalue,
    monte_carlo_gram as monte_carlo_gram,
    relu_kernel as relu_kernel,
    spectrum as spectrum,
    start_gram as start_gram,
    tangent_kernel as tangent_kernel,
)
from fedbn.paper.theory.network import (
    Network as Network,
    Samples as Samples,
    initial_network as initial_network,
    loss as loss,
    norms as norms,
    personalise as personalise,
    pool as pool,
    predict as predict,
    random_clients as random_clients,
    second_moment as second_moment,
)
from fedbn.paper.theory.study import (
    Bound as Bound,
    Branch as Branch,
    Checks as Checks,
    Kernels as Kernels,
    Setting as Setting,
    Study as Study,
    study as study,
)
