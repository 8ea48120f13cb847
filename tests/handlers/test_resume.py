import pytest
import torch
from ignite.engine import Events
from monai.data import CacheDataset, DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.transforms import RandGaussianNoised

from monai_sc.handlers import ResumeHandler


def build(path, epochs=4, workers=0, cache=Dataset, length=None, amp=False):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.3))
    data = [{"image": torch.tensor([float(k)]), "label": torch.tensor([2.0 * k])} for k in range(4)]
    noise = RandGaussianNoised("image", prob=0.8)
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        epoch_length=length,
        amp=amp,
        train_data_loader=DataLoader(cache(data, noise), batch_size=2, shuffle=True, num_workers=workers),
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9),
        loss_function=torch.nn.MSELoss(),
    )
    handler = ResumeHandler(path, {"model": network, "optimizer": trainer.optimizer, "trainer": trainer})
    handler.attach(trainer)
    return trainer


def cached(data, transform):
    return CacheDataset(data, transform, progress=False)


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 2}, {"cache": cached}, {"length": 3}],
    ids=["plain", "workers", "cached", "longer-epochs"],
)
def test_interrupted_run_ends_like_an_uninterrupted_one(tmp_path, options):
    whole = build(tmp_path / "whole.pt", **options)
    whole.run()
    cut = build(tmp_path / "cut.pt", **options)

    @cut.on(Events.ITERATION_COMPLETED(once=5))
    def stop(engine):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.run()
    torch.rand(3)  # what a process draws in between makes no difference
    again = build(tmp_path / "cut.pt", **options)
    epochs = []
    again.add_event_handler(Events.EPOCH_STARTED, lambda e: epochs.append(e.state.epoch))
    again.run()
    assert epochs == ([2, 3, 4] if options.get("length") else [3, 4])
    for a, b in zip(whole.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["cut.pt", "whole.pt"]


def test_state_is_saved_before_the_first_epoch(tmp_path):
    trainer = build(tmp_path / "new" / "a.pt")
    first = trainer.network[0].weight.detach().clone()

    @trainer.on(Events.ITERATION_STARTED(once=1))
    def stop(engine):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    saved = torch.load(tmp_path / "new" / "a.pt", weights_only=True)
    assert torch.equal(saved["model"]["0.weight"], first)
    assert saved["trainer"]["iteration"] == 0


def test_longer_run_goes_on_from_a_shorter_one(tmp_path):
    build(tmp_path / "a.pt", epochs=2).run()
    trainer = build(tmp_path / "a.pt", epochs=3)
    trainer.run()
    assert trainer.state.epoch == 3


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "other-parts"])
def test_unfit_checkpoint_is_refused(tmp_path, content):
    if content is None:
        torch.save({"model": {}}, tmp_path / "a.pt")
    else:
        (tmp_path / "a.pt").write_bytes(content)
    trainer = build(tmp_path / "a.pt")
    with pytest.raises(
        ValueError, match=r"a\.pt must be the checkpoint of this run, but it is damaged or does not fit"
    ):
        trainer.run()


def test_checkpoint_with_a_flipped_bit_is_refused(tmp_path):
    trainer = build(tmp_path / "a.pt", epochs=1)
    trainer.run()
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(trainer.network[0].weight.detach().numpy().tobytes())] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    trainer = build(tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt must be the checkpoint .* damaged .*the checksum of .* is wrong"):
        trainer.run()


def test_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    trainer = build(tmp_path / "a.pt")
    save = torch.save

    def fill_the_disk(content, file):
        save(content, file)
        if trainer.state.epoch == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_the_disk)
    with pytest.raises(OSError, match=r"a\.pt cannot be written \(No space left on device\); the previous checkpoint"):
        trainer.run()
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]
    assert torch.load(tmp_path / "a.pt", weights_only=True)["trainer"]["iteration"] == 2


@pytest.mark.filterwarnings("ignore:.*GradScaler:FutureWarning", "ignore:.*CUDA is not available:UserWarning")
@pytest.mark.filterwarnings("ignore:.*autocast:FutureWarning")
def test_scale_of_gradients_in_half_precision_is_saved(tmp_path):
    trainer = build(tmp_path / "a.pt", epochs=1, amp=True)
    trainer.run()
    saved = torch.load(tmp_path / "a.pt", weights_only=True)
    assert saved["scaler"] == trainer.scaler.state_dict()
