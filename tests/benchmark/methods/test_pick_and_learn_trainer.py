import logging

import pytest
import torch
from ignite.engine import Events
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedTrainer
from monai.losses import DeepSupervisionLoss, DiceCELoss, DiceLoss
from monai.networks.nets import UNet
from torch.utils.data import TensorDataset

from monai_sc.benchmark.methods import PickAndLearnNet, PickAndLearnTrainer, QualityAwarenessModule
from monai_sc.handlers import ResumeHandler
from monai_sc.handlers.prediction import predict

SIGMOID = {"label_channels": 2, "loss": DiceCELoss(sigmoid=True)}
SOFTMAX = {"label_channels": 3, "loss": DiceCELoss(softmax=True, to_onehot_y=True)}


def networks(dims=2, label_channels=1):
    torch.manual_seed(0)
    network = UNet(dims, 1, label_channels, channels=(8, 16), strides=(2,), norm="instance")
    return PickAndLearnNet(network, QualityAwarenessModule(dims, 1, label_channels, channels=(8, 16)))


def cases(number, spatial=(8, 8), channels=1, classes=2):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(number, 1, *spatial, generator=generator)
    labels = torch.randint(classes, (number, channels, *spatial), generator=generator).float()
    return [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]


def trainer_of(net, data, loss, batch_size=4, epochs=1, lr=0.05, kind=PickAndLearnTrainer, shuffle=False, **options):
    return kind(
        device=torch.device(options.pop("device", "cpu")),
        max_epochs=epochs,
        train_data_loader=DataLoader(Dataset(data), batch_size=batch_size, shuffle=shuffle),
        network=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9),
        loss_function=loss,
        **options,
    )


def parameters_of(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def slow_loss(net, image, label, loss):
    """Return the loss of a batch from the definition, sample by sample."""
    scores = [2 * torch.tanh(net.quality(image[b : b + 1], label[b : b + 1]))[0] for b in range(len(image))]
    total = sum(torch.exp(score) for score in scores)
    losses = [loss(net.network(image[b : b + 1]), label[b : b + 1]).mean() for b in range(len(image))]
    return sum(torch.exp(score) / total * value for score, value in zip(scores, losses, strict=True))


def batch_of(data):
    return torch.stack([case["image"] for case in data]), torch.stack([case["label"] for case in data])


@pytest.mark.parametrize("spatial", [(8, 8), (6, 8, 4)], ids=["2d", "3d"])
@pytest.mark.parametrize("head", [SIGMOID, SOFTMAX], ids=["sigmoid", "softmax"])
def test_step_is_that_of_the_definition(spatial, head):
    channels, classes = (2, 2) if head is SIGMOID else (1, 3)
    data = cases(4, spatial, channels, classes)
    net, other = (networks(len(spatial), head["label_channels"]) for _ in range(2))
    trainer = trainer_of(net, data, head["loss"], decollate=False)
    trainer.run()
    expected = slow_loss(other, *batch_of(data), head["loss"])
    torch.testing.assert_close(trainer.state.output["loss"], expected)
    expected.backward()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter -= 0.05 * parameter.grad
    torch.testing.assert_close(parameters_of(net), parameters_of(other))


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(torch.nn.BCEWithLogitsLoss(reduction="none"), id="unreduced"),
        pytest.param(DiceLoss(sigmoid=True, batch=True), id="dice-over-the-batch"),
        pytest.param(lambda pred, label: DeepSupervisionLoss(DiceLoss())([pred, pred[..., ::2]], label), id="lambda"),
    ],
)
def test_any_loss_is_called_sample_by_sample(loss):
    data = cases(3)
    trainer = trainer_of(networks(), data, loss, lr=0, decollate=False)
    trainer.run()
    torch.testing.assert_close(trainer.state.output["loss"], slow_loss(networks(), *batch_of(data), loss))


def test_quality_module_learns_to_trust_samples_of_low_loss():
    data = cases(2)
    net = networks()
    image, label = batch_of(data)
    losses = [torch.nn.BCEWithLogitsLoss()(net(image[b : b + 1]), label[b : b + 1]) for b in range(2)]
    before = net.weights(image, label)
    trainer_of(net, data, torch.nn.BCEWithLogitsLoss()).run()
    after = net.weights(image, label)
    better = 0 if losses[0] < losses[1] else 1
    assert after[better] > before[better]


def test_gradient_reaches_both_parts():
    net = networks()
    trainer_of(net, cases(4), torch.nn.BCEWithLogitsLoss()).run()
    for part in (net.network, net.quality):
        gradients = [parameter.grad for parameter in part.parameters()]
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert sum(gradient.abs().sum() for gradient in gradients) > 0


def test_output_holds_the_weight_of_each_sample():
    data = [{key: MetaTensor(x) for key, x in case.items()} for case in cases(3)]
    net = networks()
    trainer = trainer_of(net, data, torch.nn.BCEWithLogitsLoss(), lr=0)
    trainer.run()
    output = trainer.state.output
    assert [set(sample) for sample in output] == [{"image", "label", "pred", "loss", "quality_weight"}] * 3
    expected = net.weights(*batch_of(data))
    assert [sample["quality_weight"] for sample in output] == pytest.approx(expected.tolist())
    assert output[0]["pred"].shape == (1, 8, 8)


def test_handler_predicts_by_the_inferer_of_the_trainer():
    net, data = networks(), cases(4)
    trainer = trainer_of(net, data, torch.nn.BCEWithLogitsLoss())
    trainer.run()
    found = [logits for _, (logits,) in predict(trainer, DataLoader(Dataset(data), batch_size=3), [net])]
    torch.testing.assert_close(torch.stack(found), net.network.eval()(batch_of(data)[0]).detach())


def test_accumulated_steps_weigh_each_small_batch_for_itself():
    data = cases(4)
    net, other = networks(), networks()
    loss = torch.nn.BCEWithLogitsLoss()
    trainer_of(net, data, loss, batch_size=2, accumulation_steps=2).run()
    image, label = batch_of(data)
    for b in (0, 2):
        (slow_loss(other, image[b : b + 2], label[b : b + 2], loss) / 2).backward()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter -= 0.05 * parameter.grad
    torch.testing.assert_close(parameters_of(net), parameters_of(other))


def test_batch_of_one_is_plain_training(caplog):
    data = cases(3)
    net, other = networks(), networks()
    loss = torch.nn.BCEWithLogitsLoss()
    with caplog.at_level(logging.INFO):
        trainer_of(net, data, loss, batch_size=1, epochs=2).run()
    told = [record for record in caplog.records if "A batch of one sample has the weight 1" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    trainer_of(other.network, data, loss, batch_size=1, epochs=2, kind=SupervisedTrainer).run()
    torch.testing.assert_close(parameters_of(net.network), parameters_of(other.network))
    torch.testing.assert_close(parameters_of(net.quality), parameters_of(other.quality))


def test_last_batch_of_one_is_no_warning(caplog):
    with caplog.at_level(logging.INFO):
        trainer_of(networks(), cases(3), torch.nn.BCEWithLogitsLoss(), batch_size=2, epochs=2).run()
    told = [record for record in caplog.records if "A batch of one sample has the weight 1" in record.message]
    assert [record.levelno for record in told] == [logging.INFO]


def test_distributed_network_takes_the_same_step(tmp_path):
    data, loss = cases(4), torch.nn.BCEWithLogitsLoss()
    net, other = networks(), networks()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        trainer_of(torch.nn.parallel.DistributedDataParallel(net), data, loss).run()
    finally:
        torch.distributed.destroy_process_group()
    trainer_of(other, data, loss).run()
    torch.testing.assert_close(parameters_of(net), parameters_of(other))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_mixed_precision_is_near_full_precision():
    losses = []
    for amp in (False, True):
        trainer = trainer_of(networks().cuda(), cases(4), torch.nn.BCEWithLogitsLoss(), amp=amp, device="cuda")
        trainer.run()
        losses.append(trainer.state.output[0]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_interrupted_run_ends_like_an_uninterrupted_one(tmp_path):
    def build(name):
        net = networks()
        trainer = trainer_of(net, cases(6), torch.nn.BCEWithLogitsLoss(), batch_size=2, epochs=3, shuffle=True)
        state = {"model": net, "optimizer": trainer.optimizer, "trainer": trainer}
        ResumeHandler(tmp_path / name, state).attach(trainer)
        return trainer

    whole, cut = build("whole.pt"), build("cut.pt")
    whole.run()

    @cut.on(Events.ITERATION_COMPLETED(once=5))
    def stop(engine):
        raise KeyboardInterrupt

    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    again = build("cut.pt")
    again.run()
    assert torch.equal(parameters_of(again.network), parameters_of(whole.network))


def test_network_without_a_quality_module_is_refused():
    with pytest.raises(
        TypeError, match=r"must be a PickAndLearnNet, got UNet; give PickAndLearnNet\(network, quality\)"
    ):
        trainer_of(networks().network, cases(2), torch.nn.BCEWithLogitsLoss())


def discs(number, generator):
    """Return noisy images of one disc each, and their labels, ``(number, 1, 24, 24)``."""
    grid = torch.stack(torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij"))
    centre = 6 + 12 * torch.rand(number, 2, 1, 1, generator=generator)
    radius = 3 + 3 * torch.rand(number, 1, 1, generator=generator)
    label = (((grid - centre) ** 2).sum(1, keepdim=True) < radius[:, None] ** 2).float()
    return label + 0.5 * torch.randn(label.shape, generator=generator), label


def garbage_run(garbage, seed, kind):
    """Train where 35 % of the labels are garbage; return the Dice of clean test cases, and how well weights find it."""
    generator = torch.Generator().manual_seed(seed)
    (image, label), (test_image, test_label) = discs(60, generator), discs(40, generator)
    bad = torch.arange(60) < 21
    label[bad] = garbage(label[bad])
    torch.manual_seed(seed)
    network = UNet(2, 1, 1, channels=(8, 16, 32), strides=(2, 2))
    net = PickAndLearnNet(network, QualityAwarenessModule(2, 1, 1, channels=(8, 16)))
    loader = DataLoader(TensorDataset(image, label), batch_size=10, shuffle=True)
    trainer = kind(
        device=torch.device("cpu"),
        max_epochs=10,
        train_data_loader=loader,
        prepare_batch=lambda batch, *_: batch,
        network=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.01),
        loss_function=torch.nn.BCEWithLogitsLoss(),
        decollate=False,
    )
    trainer.run()
    network.eval()
    with torch.no_grad():
        found = network(test_image) > 0
        weights = net.weights(image, label)
    dice = 2 * (found * test_label).sum((1, 2, 3)) / (found.sum((1, 2, 3)) + test_label.sum((1, 2, 3)))
    return dice.mean().item(), (weights[bad, None] < weights[None, ~bad]).float().mean().item()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(lambda label: label.roll((8, 8), (2, 3)), id="moved"),
        pytest.param(lambda label: label.roll(1, 0), id="of-another-image"),
    ],
)
def test_garbage_labels_are_found_and_harm_less(garbage, seed):
    plain, _ = garbage_run(garbage, seed, SupervisedTrainer)
    dice, area_under_roc = garbage_run(garbage, seed, PickAndLearnTrainer)
    assert dice > plain + 0.05
    assert area_under_roc > 0.9
