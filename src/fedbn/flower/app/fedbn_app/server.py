"""The server's side."""

from fedbn.flower.server_app import make_app

app = make_app()
