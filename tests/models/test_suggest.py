import pytest

from fedbn.models import suggested


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        ((5,), "mlp"),
        ((2, 9), "mlp"),
        ((3, 2, 2), "mlp"),
        ((1, 28, 28), "small_cnn"),
        ((3, 63, 63), "small_cnn"),
        ((3, 64, 64), "alexnet"),
        ((3, 256, 256), "alexnet"),
    ],
)
def test_a_model_is_suggested(shape, model):
    assert suggested(shape) == model
