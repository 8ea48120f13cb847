"""The processes of one training, started by ``torchrun``: which one this is, and what they tell each other.

Without a process group of ``torch.distributed`` there is one process, and every function here does nothing special.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ignite.distributed as idist
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler

__all__ = [
    "OtherProcessError",
    "broadcast_state",
    "fail_together",
    "gather",
    "gather_items",
    "is_lost",
    "is_main",
    "meeting_elsewhere",
    "own_part",
    "rank",
    "unwrapped",
    "warm_up",
    "world_size",
]


LOST = (
    "Rank {} stops because another process of this run ended; see its message. Run the same command to resume from the "
    "last checkpoint."
)


class OtherProcessError(RuntimeError):
    """Another process of the run has failed or ended, so that this one cannot go on."""


@dataclass(frozen=True)
class _Failure:
    """What a process that has failed sends in place of its result."""

    reason: str


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """Say whether this is the process that writes what is written once."""
    return rank() == 0


def is_lost(error: BaseException) -> bool:
    """Say whether an error tells that the connection to another process is gone, as far as a backend lets one know."""
    if world_size() == 1:
        return False
    signs = ("connection closed", "connection reset", "broken pipe", "failed to recv", "gloo/transport")
    causes = [error, *_causes(error)]
    return any(isinstance(e, dist.DistError) or any(sign in str(e).lower() for sign in signs) for e in causes)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield what an error came from, the first cause last."""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def warm_up() -> None:
    """Let ignite make what it needs to talk to other processes, in all of them at once.

    It does so when it is first asked, which could be in a metric that another process does not reach: that one would be
    waited for without end.
    """
    if world_size() > 1:
        idist.get_world_size()


def gather(value: Any = None) -> list[Any]:
    """Return the values of all processes, by rank; each must call it, so that it also waits for all.

    Args:
        value: anything that can be pickled.

    Raises:
        OtherProcessError: when another process has failed or ended.
    """
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    try:
        dist.all_gather_object(values, value)
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise OtherProcessError(LOST.format(rank())) from error
    failed = [f"rank {r} failed: {v.reason}" for r, v in enumerate(values) if isinstance(v, _Failure)]
    if failed:
        raise OtherProcessError(f"Rank {rank()} ends, since {'; '.join(failed)}")
    return values


def gather_items(items: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return the items of all processes, in the order of their positions.

    Args:
        items: of this process.
        positions: of each of them, among those of all processes.
    """
    pairs = itertools.chain.from_iterable(gather(list(zip(positions, items, strict=True))))
    return [item for _, item in sorted(pairs, key=lambda pair: pair[0])]


@contextmanager
def meeting_elsewhere() -> Iterator[None]:
    """Mark a part of a :py:func:`fail_together` block in which processes meet otherwise, as in a metric of MONAI.

    If one fails there, it cannot tell the others; they learn it when it has ended.
    """
    try:
        yield
    except Exception as error:
        error._met_elsewhere = True  # type: ignore[attr-defined]
        raise


@contextmanager
def fail_together() -> Iterator[None]:
    """End a block in all processes or in none: if one fails, the others raise instead of waiting for it.

    Within the block processes meet in :py:func:`gather`, as often as one another. Blocks must not be nested.

    Raises:
        OtherProcessError: when another process has failed or ended.
    """
    try:
        yield
        gather()
    except OtherProcessError:
        raise
    except Exception as error:
        if world_size() > 1 and not hasattr(error, "_met_elsewhere"):
            # In place of what the others wait for.
            with suppress(Exception):
                dist.all_gather_object([None] * world_size(), _Failure(_reason(error)))
        raise


def _reason(error: BaseException) -> str:
    """Return an error in words, with what it first came from: MONAI's errors of transforms do not say it."""
    first = [error, *_causes(error)][-1]
    own = f"{type(error).__name__}: {error}"
    return own if first is error else f"{own} ({type(first).__name__}: {first})"


def own_part(loader: DataLoader[Any], indices: Sequence[int] | None = None) -> tuple[DataLoader[Any], list[int]]:
    """Return a loader of every n-th batch of another one, and the positions of its cases in the data set.

    The batches are those that one process would load, so that a network's output is the same to the last bit.

    Args:
        loader: of all cases in their order.
        indices: of the cases to load; by default all.

    Raises:
        ValueError: when ``loader`` draws its cases in another order, or has a part of them only.
    """
    if world_size() == 1 and indices is None:
        return loader, list(range(len(loader.dataset)))  # type: ignore[arg-type] # a MONAI data set
    if isinstance(loader.sampler, DistributedSampler):
        raise ValueError(
            "clean_loader and relabel_loader must hold all cases in every process, got one with a DistributedSampler; "
            "leave the sampler out: the handler splits the cases itself."
        )
    size = loader.batch_size or 1
    if world_size() > 1 and not isinstance(loader.sampler, SequentialSampler):
        raise ValueError(
            "clean_loader and relabel_loader must load batches in the order of their data sets, so without shuffling."
        )
    chosen = range(len(loader.dataset)) if indices is None else indices  # type: ignore[arg-type] # a MONAI data set
    own = [list(chosen[i : i + size]) for i in range(0, len(chosen), size)][rank() :: world_size()]
    # Not MONAI's, which would set the random state of the process.
    part: DataLoader[Any] = DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        batch_sampler=own,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    return part, list(itertools.chain.from_iterable(own))


def unwrapped(network: torch.nn.Module) -> torch.nn.Module:
    """Return the network itself, not the wrapper that averages its gradients over processes."""
    return network.module if isinstance(network, DistributedDataParallel) else network


def broadcast_state(network: torch.nn.Module) -> None:
    """Give a network the state that it has in the main process: buffers, such as those of batch norm, differ."""
    if world_size() == 1:
        return
    state: Mapping[str, torch.Tensor] = unwrapped(network).state_dict()
    for tensor in state.values():
        dist.broadcast(tensor, src=0)
