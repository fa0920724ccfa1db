"""Every table and figure of the paper: what `fedbn reproduce` does, one experiment file each.

An experiment file says in `[reproduce]` how it is shown. Most train and go through `trained`; a
function of its own is named by `reproduce.by`: `(request) -> Outcome`.
"""
