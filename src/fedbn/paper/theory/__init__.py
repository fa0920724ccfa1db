"""The paper's theory, computed: Gram matrices, kernels, bounds (section 4 and appendix B).

It stands alone: torch, numpy and the standard library, nothing else of this package but its
errors. `study.study` does everything in one call; `docs/theory.md` explains it.
"""
