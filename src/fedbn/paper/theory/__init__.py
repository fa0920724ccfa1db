"""The paper's theory, computed: Gram matrices, kernels, bounds (section 4 and appendix B).

It stands alone: torch, numpy and the standard library, and of this package its errors and its
generators, one a purpose. `study.study` does everything in one call; `docs/theory.md` explains it.
"""
