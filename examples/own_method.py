"""A method of one's own: FedAvg whose clients send no more than the signs of their updates.

client k: D_k <- W_k - W after its local epochs; send |D_k| / n * sign(D_k), tensor by tensor
server:   as in FedAvg                           (signSGD with one scale: Karimireddy et al., 2019)

lexfed run examples/own_method.toml --workers 2
"""

from dataclasses import dataclass, replace

import lexfed
from lexfed.learning.parts import Parts
from lexfed.learning.task import plain_update
from lexfed.methods.fedavg import averaged


@dataclass(frozen=True)
class Signs:
    """The `[sign_fedavg]` table."""

    scale: float = 1.0  # times the mean length of a number


def sign_fedavg(parts: Parts, options: Signs) -> lexfed.Method:
    train = plain_update(parts.task)

    def update(params, client, state, message, seed):
        after = train(params, client, state, message, seed)
        moved = {name: after.params[name] - value for name, value in params.items()}
        signs = {name: options.scale * d.abs().mean() * d.sign() for name, d in moved.items()}
        return replace(after, params={name: value + signs[name] for name, value in params.items()})

    return averaged(parts, update)


METHOD = lexfed.Entry("sign_fedavg", lexfed.CLASSIFIER, sign_fedavg, Signs)
