"""Examples as pictures inside the page."""

from __future__ import annotations

import base64
import io

from markupsafe import Markup
from PIL import Image

from fedbn.results.report.contents import Example
from fedbn.results.report.svg import short, tag

_SIDE = 96


def picture(example: Example) -> Markup:
    """Show an example with its class, and with what the model took it for."""
    sure = f"{100 * example.probability:.0f} %"
    spoken = f"{example.true}, predicted {example.predicted} ({sure})"
    source = f"data:image/png;base64,{base64.b64encode(png(example)).decode()}"
    said = f"✓ {short(example.true, 14)}"
    if not example.right:
        said = f"✗ {short(example.true, 14)} → {short(example.predicted, 14)}"
    small = max(example.pixels.shape[:2]) < _SIDE
    image = tag("img", src=source, alt=spoken, title=spoken, class_="pixels" if small else None)
    caption = tag("figcaption", said, tag("small", sure), dir="auto")
    return tag("figure", image, caption, class_="right" if example.right else "wrong")


def png(example: Example) -> bytes:
    """Encode a picture, made smaller where it is large."""
    image = Image.fromarray(example.pixels)
    image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
