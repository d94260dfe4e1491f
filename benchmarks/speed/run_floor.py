"""The bare floor: local SGD steps, clip, sum, noise and Adam in one loop of plain torch.

python run_floor.py FOLDER [--threads 1] [--agree FILE]
"""

import time

import torch
import work as shared


def main() -> None:
    options, work, net = shared.begun()
    params, start = list(net.parameters()), [p.detach().clone() for p in net.parameters()]
    for value in start:
        value.grad = torch.zeros_like(value)
    adam = torch.optim.Adam(start, lr=work.server_lr, eps=0.01, betas=(0.9, 0.99))
    server = torch.optim.SGD(start, lr=1.0) if options.agree else adam
    noise = 0.0 if options.agree else work.noise * work.clip * work.cohort / shared.NOISE_COHORT
    planned = [
        [torch.from_numpy(client) for client in one_round]
        for one_round in shared.rounds(options.folder)
    ]
    total, wall, cpu = [torch.zeros_like(value) for value in start], [], []
    began = shared.began()
    for one_round in planned[:1] if options.agree else planned:
        begun = time.perf_counter(), shared.own_cpu()
        torch._foreach_zero_(total)
        for client in one_round:
            _client(net, params, start, total, client, work)
        for value, added in zip(start, total, strict=True):
            added.add_(torch.randn_like(added), alpha=noise)
            value.grad.copy_(added).mul_(-1.0 / work.cohort)
        server.step()
        wall.append(time.perf_counter() - begun[0])
        cpu.append(shared.own_cpu() - begun[1])
    names = [name for name, _ in net.named_parameters()]
    if options.agree:
        shared.save_weights(
            options.agree, {n: v.numpy() for n, v in zip(names, start, strict=True)}
        )
    shared.report(f"floor, {options.threads} threads", options.folder, wall, cpu, began)


def _client(net, params, start, total, windows, work) -> None:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        torch._foreach_copy_(params, start)
    for at in range(0, len(windows), work.batch):
        batch = windows[at : at + work.batch]
        for value in params:
            value.grad = None
        net.loss(batch[:, :-1], batch[:, 1:]).backward()
        with torch.no_grad():
            torch._foreach_add_(params, [value.grad for value in params], alpha=-work.lr)
    with torch.no_grad():
        delta = torch._foreach_sub(params, start)
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(delta))).item()
        torch._foreach_add_(total, delta, alpha=min(1.0, work.clip / (length + 1e-12)))


if __name__ == "__main__":
    main()
