"""A site's side."""

from fedbn.engines.flower.client_app import make_app

app = make_app()
