"""The models by name. A function in `__all__` of a module here is a model.

A model is a function that is called with those of `classes` and `input_shape` that its signature
names, plus the user's `model.args`.

Which registered model fits a sample's shape, for users who name none.
"""

from __future__ import annotations

_LARGE = 64
_SMALLEST = 4


def suggested(input_shape: tuple[int, ...], masks: bool = False) -> str:
    """Name a model: dense for vectors, a small CNN for small images, AlexNet for large ones.

    Where each pixel has a class, a U-Net.

    Examples:
        >>> suggested((30,)), suggested((3, 28, 28)), suggested((3, 256, 256))
        ('mlp', 'small_cnn', 'alexnet')
    """
    if masks and len(input_shape) == 3:
        return "unet"
    if len(input_shape) != 3 or min(input_shape[1:]) < _SMALLEST:
        return "mlp"
    return "small_cnn" if min(input_shape[1:]) < _LARGE else "alexnet"
