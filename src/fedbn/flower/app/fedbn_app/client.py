"""A site's side."""

from fedbn.flower.site_app import make_app

app = make_app()
