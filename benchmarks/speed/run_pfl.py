"""The same work in pfl-research: PyTorchModel, FederatedAveraging, a central GaussianMechanism.

python run_pfl.py FOLDER [--threads 1] [--agree FILE]
"""

import time

import torch
import work as shared
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.hyperparam.base import HyperParam
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, NormClippingOnly

NEVER = 10**9


class Clock(TrainingProcessCallback):
    def on_train_begin(self, *, model):  # type: ignore[no-untyped-def]
        self.wall, self.cpu, self.start = [], [], shared.began()
        self.begun = time.perf_counter(), shared.own_cpu()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        self.wall.append(time.perf_counter() - self.begun[0])
        self.cpu.append(shared.own_cpu() - self.begun[1])
        self.begun = time.perf_counter(), shared.own_cpu()
        return False, Metrics()


class Sizes(HyperParam):
    """Cohorts by Poisson's law are of different sizes."""

    def __init__(self, sizes: list[int], clock: Clock) -> None:
        self.sizes, self.clock = sizes, clock

    def value(self) -> int:
        return self.sizes[min(len(getattr(self.clock, "wall", ())), len(self.sizes) - 1)]


def main() -> None:
    options, work, net = shared.begun()
    planned = shared.rounds(options.folder)
    if options.agree:
        planned = planned[:1]
    clients = [torch.from_numpy(client) for one_round in planned for client in one_round]
    pairs = [[ids[:, :-1].contiguous(), ids[:, 1:].contiguous()] for ids in clients]
    order = iter([*range(len(pairs)), *range(2 * work.cohort)])  # it looks one round ahead
    data = FederatedDataset(
        lambda user: Dataset(pairs[user], user_id=str(user)), lambda: next(order)
    )
    server = (
        # it divides by who came, the others by who was expected
        torch.optim.SGD(net.parameters(), lr=len(planned[0]) / work.cohort)
        if options.agree
        else torch.optim.Adam(net.parameters(), lr=work.server_lr, eps=0.01, betas=(0.9, 0.99))
    )
    noise = work.noise * work.cohort / shared.NOISE_COHORT
    mechanism = (
        NormClippingOnly(2, work.clip) if options.agree else GaussianMechanism(work.clip, noise)
    )
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(planned),
            evaluation_frequency=NEVER,
            train_cohort_size=Sizes([len(one_round) for one_round in planned], clock),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=data,
            val_data=data,
            postprocessors=[
                mechanism if options.agree else CentrallyAppliedPrivacyMechanism(mechanism)
            ],
        ),
        model=PyTorchModel(net, torch.optim.SGD, server),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=work.lr, local_num_epochs=1, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1024),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if options.agree:
        weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
        shared.save_weights(options.agree, weights)
    who = f"pfl-research, {options.threads} threads"
    shared.report(who, options.folder, clock.wall, clock.cpu, clock.start)


if __name__ == "__main__":
    main()
