"""A run as one page to hand on: HTML that needs nothing beside itself, or Markdown."""
