"""Frameworks of others on the work of `benchmarks/sites.py`, each in its own words.

`python benchmarks/peers/NAME.py CLIENTS ROUNDS` does so many rounds of FedBN, all clients in each,
every one scored each round, and ends; it needs what it is named after and nothing of ours.
"""
