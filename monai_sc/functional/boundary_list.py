"""The march of a boundary, at a cost that follows the boundary and the steps, not the image."""

from __future__ import annotations

import numpy as np

from monai_sc.functional.compiled import compiled

# The state of a voxel is one byte: its class, the two lists it may be on, and how many of its face neighbours are of
# the other class. A rim of one voxel that is outside of the image spares all tests for the edge.
FOREGROUND = np.uint8(0x01)
LISTED = np.uint8(0x02)  # on the list of the background; shifted by one, on that of the foreground
NEIGHBOUR = np.uint8(0x08)  # one neighbour of the other class
NEIGHBOURS = np.uint8(0x38)
OUTSIDE = np.uint8(0x80)
BLOCK = 2**14  # bytes that stay in a cache
WORD_OF_NEIGHBOURS = np.uint64(0x3838383838383838)


def march(mask: np.ndarray, expands: np.ndarray, march_prob: float, rng: np.random.Generator) -> np.ndarray:
    r"""Return a boolean ``mask`` ``(*spatial)``, at most 3-D, after one step of the Markov process per ``expands``.

    Two lists hold the voxels beside the boundary, one for each class, and change where voxels flip. A step visits only
    the voxels that move: on the list of the class that is to lose voxels, it skips as many as a geometric law says. A
    voxel on the list that is not beside the boundary any more is taken off when it is visited; the one that takes its
    place has not been drawn yet, so it gets a draw of its own. All voxels of a step are chosen before the first moves.

    Args:
        mask: not written to.
        expands: for each step whether it expands; else it shrinks.
        march_prob: :math:`\theta_2`, in ``[0, 1]``.
        rng: of the draws.
    """
    if march_prob == 0 or not len(expands):
        return mask.copy()
    inner = (slice(1, -1),) * mask.ndim
    rimmed = np.full([size + 2 for size in mask.shape], OUTSIDE)
    rimmed[inner] = mask
    state = np.zeros_like(rimmed)
    number = np.zeros(0, dtype=np.int32 if rimmed.size < 2**31 else np.int64)  # whose type the lists have
    steps = np.array(expands, dtype=bool, order="C")  # another kind of array is compiled for anew, which takes seconds
    offsets = np.ravel([(stride, -stride) for stride in rimmed.strides])  # of the face neighbours
    _march(rimmed.ravel(), state.ravel(), offsets, steps, float(march_prob), number, rng)
    return np.asarray((state[inner] & FOREGROUND).view(bool))


@compiled
def _march(rimmed, state, offsets, expands, march_prob, number, rng):  # type: ignore[no-untyped-def] # pragma: no cover
    # Loops over slices that start at 0 are the ones that become vector instructions. No slice is assigned an array: the
    # error for shapes that do not fit would take longer to compile than all the rest.
    size = len(state)
    rim = np.max(offsets)  # no voxel of the image lies closer to either end
    totals = np.zeros(2, dtype=np.int64)
    for first in range(rim, size - rim, BLOCK):
        last = min(first + BLOCK, size - rim)
        centre, counts = rimmed[first:last], state[first:last]
        for offset in offsets:
            neighbour = rimmed[first + offset : last + offset]
            for i in range(len(centre)):
                counts[i] += ((centre[i] ^ neighbour[i]) & ~(neighbour[i] >> 7) & 1) << 3
        for i in range(len(centre)):
            counts[i] = counts[i] * (1 - (centre[i] >> 7)) | centre[i]
            totals[counts[i] & 1] += (counts[i] & NEIGHBOURS) > 0
    state[:rim] = state[size - rim :] = OUTSIDE
    listed = np.zeros(2, dtype=np.int64)
    lists = np.empty((2, 64 + 3 * np.max(totals) // 2), dtype=number.dtype)
    words = state[: size // 8 * 8].view(np.uint64)
    for w in range(len(words) + 1):
        if w < len(words) and not words[w] & WORD_OF_NEIGHBOURS:
            continue
        for i in range(8 * w, min(8 * w + 8, size)):
            if state[i] & NEIGHBOURS:
                side = state[i] & 1
                lists[side, listed[side]] = i
                listed[side] += 1
                state[i] |= LISTED << side

    mean_skip = 0.0 if march_prob == 1 else -1 / np.log1p(-march_prob)
    moving = np.empty(64, dtype=number.dtype)
    limits = listed + listed // 2 + 64
    for step in range(len(expands)):
        side = 0 if expands[step] else 1  # the class that is to lose voxels
        flag, other_flag = LISTED << side, LISTED << (1 - side)
        count = listed[side]
        if count > limits[side]:  # visits of stale entries would cost more than a sweep
            kept = 0
            for i in range(count):
                v = lists[side, i]
                lists[side, kept] = v
                s = state[v]
                if s & 1 == side and s & NEIGHBOURS:
                    kept += 1
                else:
                    state[v] = s & ~flag
            count = kept
            limits[side] = count + count // 2 + 64

        if len(moving) < count:
            moving = np.empty(count + count // 2, dtype=number.dtype)
        movers = 0
        i = 0
        while True:
            skip = rng.standard_exponential() * mean_skip
            if skip >= count - i:
                break
            i += int(skip)
            v = lists[side, i]
            s = state[v]
            moves = s & 1 == side and s & NEIGHBOURS
            moving[movers] = v
            movers += 1 if moves else 0
            count -= 1
            lists[side, i] = lists[side, count]
            state[v] = s & ~flag

        needed = max(count, listed[1 - side]) + len(offsets) * movers + 1
        if needed > lists.shape[1]:
            longer = np.empty((2, needed + needed // 2), dtype=number.dtype)
            for row in range(2):
                for i in range(lists.shape[1]):
                    longer[row, i] = lists[row, i]
            lists = longer
        # Without branches, whose outcome no processor can guess here: what may not be appended is written all the same,
        # behind the end of the list.
        other_count = listed[1 - side]
        for k in range(movers):
            v = moving[k]
            opposite = np.int64(0)
            for offset in offsets:
                u = v + offset
                n = np.int64(state[u])
                if n & OUTSIDE:
                    continue
                left = (n ^ side ^ 1) & 1  # 1 where the neighbour stays in the class that v leaves
                opposite += left
                lists[side, count] = u
                count += left & ~(n >> (1 + side))
                state[u] = (n + (left << 4) - NEIGHBOUR) | (left << (1 + side))
            s = ((state[v] ^ FOREGROUND) & ~NEIGHBOURS) | (opposite << 3)
            lists[1 - side, other_count] = v
            if opposite and not s & other_flag:
                other_count += 1
                s |= other_flag
            state[v] = s
        listed[side], listed[1 - side] = count, other_count
