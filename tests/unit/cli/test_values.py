import click
import pytest

from rpc_backend.cli.values import ByteSize


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("10k", 10_000),
        ("4G", 4_000_000_000),
        ("4GB", 4_000_000_000),
        ("512MiB", 512 << 20),
        ("512mi", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("2 TiB", 2 << 40),
        ("9007199254740993", 9007199254740993),  # not a float: 2^53 + 1
    ],
)
def test_a_size_is_read_with_its_unit(text: str, nbytes: int) -> None:
    assert ByteSize().convert(text, None, None) == nbytes


@pytest.mark.parametrize("text", ["", "G", "-1", "0", "0.1", "1e9", "5i", "12 bananas", "4 GG"])
def test_what_is_no_size_is_quoted(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        ByteSize().convert(text, None, None)
    assert repr(text) in caught.value.message


def test_zero_is_a_size_where_it_means_something() -> None:
    assert ByteSize(low=0).convert("0", None, None) == 0
