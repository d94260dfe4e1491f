import torch

from lexfed.seeds import derive, numpy_generator, root, torch_generator


def test_paths_do_not_run_together() -> None:
    secret = root(0)
    children = [derive(secret, *path) for path in (("a", "bc"), ("ab", "c"), ("abc",), (1,), ("1",), ())]
    assert len(set(children)) == len(children)


def test_the_same_path_draws_the_same() -> None:
    a, b = (derive(root(3), "client", 5) for _ in range(2))
    assert torch.equal(torch.rand(4, generator=torch_generator(a)), torch.rand(4, generator=torch_generator(b)))
    assert numpy_generator(a).random() == numpy_generator(b).random()


def test_secrets_differ_between_parties_and_runs() -> None:
    assert len({derive(root(n), "client", k) for n in range(3) for k in range(3)}) == 9
