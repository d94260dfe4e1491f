import numpy as np
import torch

from lexfed.core.seeds import (
    derive,
    keystream,
    numpy_generator,
    root,
    secret_normal,
    secret_uniform,
    torch_generator,
)


def test_paths_do_not_run_together() -> None:
    secret = root(0)
    children = [
        derive(secret, *path) for path in (("a", "bc"), ("ab", "c"), ("abc",), (1,), ("1",), ())
    ]
    assert len(set(children)) == len(children)


def test_the_same_path_draws_the_same() -> None:
    a, b = (derive(root(3), "client", 5) for _ in range(2))
    assert torch.equal(
        torch.rand(4, generator=torch_generator(a)), torch.rand(4, generator=torch_generator(b))
    )
    assert numpy_generator(a).random() == numpy_generator(b).random()


def test_secrets_differ_between_parties_and_runs() -> None:
    assert len({derive(root(n), "client", k) for n in range(3) for k in range(3)}) == 9


def test_secret_numbers_hang_from_the_whole_seed() -> None:
    """torch's generator reads 32 bits of it: a private row made so could be found by trying
    them all.
    """
    one = root(0)
    other = bytes(32 - 4) + one[-4:], one[:-1] + bytes([one[-1] ^ 1])
    drawn = [secret_normal(seed, 100, 50) for seed in (one, *other)]
    assert all(not torch.equal(drawn[0], more) for more in drawn[1:])
    assert torch.equal(drawn[0], secret_normal(one, 100, 50))
    assert drawn[0].dtype == torch.float32
    assert abs(float(drawn[0].mean())) < 0.05
    assert abs(float(drawn[0].std()) - 1) < 0.05


def test_secret_numbers_are_a_ciphers_and_no_usual_generators() -> None:
    """They were PCG64's, whose state can be computed from enough of its numbers."""
    zeros = keystream(bytes(32), 64)  # RFC 8439, appendix A.1, test vector 1
    assert zeros[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    words = np.frombuffer(keystream(root(0), 80), "<u8")
    assert np.array_equal(secret_uniform(root(0), 10), (words >> 11) / 2**53)
    usual = numpy_generator(root(0)).standard_normal(5, dtype=np.float32)
    assert not np.array_equal(secret_normal(root(0), 5).numpy(), usual)
