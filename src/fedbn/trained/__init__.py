"""A trained result in use: predict, adapt to a new site, evaluate who may use whose model.

FedBN's global model has no BatchNorm, so it is used through a client: the shared part joined with
that client's own local part. A site that never trained gets a local part of its own first
(`fedbn.trained.adaptation`), from its own data and the shared part.
"""
