"""Every table and figure of the paper: what `fedbn reproduce` does, one experiment file each.

An experiment file says in `[reproduce]` how it is shown. Most train and go through `trained`; a
module of its own (`reproduce.by`) holds a function `reproduce(request) -> Outcome`.
"""
