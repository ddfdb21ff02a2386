"""Where the tokens of a batch lie: a row for each sentence, or all of them side by side without padding.

All layers but attention treat each token alone, so they take either; attention asks for a row per sentence.

B sentences, T longest sentence, L the same as attention sees it, N packed tokens, X features, H heads, K d_head
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import pad

from transformer_cli.model.positions import PositionEncoding


class Layout(Protocol):
    """From what layers compute on to what attention wants, and back."""

    length: int
    """L: positions of queries, or of keys."""

    def heads(self, x: Tensor, counts: Sequence[int], d_head: int) -> Sequence[Tensor]:
        """Split features into heads: queries, keys and values, each (B, count, L, K)."""
        ...

    def rotated(self, x_BHLK: Tensor, positions: PositionEncoding) -> Tensor:
        """Queries or keys turned by their positions, where these do so."""
        return positions.rotate(x_BHLK)

    def merge(self, x_BHLK: Tensor) -> Tensor:
        """Heads beside each other again, as the output projection reads them."""
        ...


class Rows(Layout):
    """Each sentence has a row, padded to the longest one: (B, T, X)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def heads(self, x_BTX: Tensor, counts: Sequence[int], d_head: int) -> Sequence[Tensor]:
        return x_BTX.unflatten(-1, (-1, d_head)).transpose(1, 2).split(list(counts), dim=1)

    def merge(self, x_BHTK: Tensor) -> Tensor:
        return x_BHTK.transpose(1, 2).flatten(2)


class Packed(Layout):
    """Sentence behind sentence, (N, X): what training computes on.

    Behind the last token lie rows of padding, one at least, until N is one of few numbers, and on a CPU behind the last
    sentence empty ones, until B is: for every new shape of a product, oneDNN makes and keeps a new kernel, which takes
    as long as the product itself does several times over. L is a multiple of 16 for the same reason, and because
    softmax works on as many numbers at once. Nothing that padding holds is read by anybody, so that its gradient is
    exactly zero; `heads` and `merge` rely on that.
    """

    has_kernels = True
    """Whether there is one for each shape of attention."""

    def __init__(self, lengths_B: Tensor, device: torch.device) -> None:
        """lengths_B: real tokens of each sentence, on the CPU."""
        self.device = device
        self.n_real = int(lengths_B.sum())
        self.n_rows = self.rows(self.n_real + 1)
        self.length = -(-max(int(lengths_B.max()), 1) // 16) * 16
        n = lengths_B.numel()
        self.lengths_B = pad(lengths_B, (0, _one_of_eight(n) - n if device.type == "cpu" and self.has_kernels else 0))
        """As attention sees them: of the sentences, and of the empty ones behind them."""
        self._places: dict[int, _Places] = {}
        self._maps: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @staticmethod
    def rows(n: int) -> int:
        """N, where there are n with the first of padding."""
        return _one_of_few(n)

    def pack(self, x_BTX: Tensor) -> Tensor:
        """The rows of sentences, behind one another."""
        there, back = self._between(x_BTX.size(1), (1,))
        rows = x_BTX.flatten(0, 1)
        (x_NX,) = _Moved.apply(rows, back, there[: len(rows)], (self.n_rows,), len(rows))
        return x_NX

    def ids(self, ids_BT: Tensor) -> Tensor:
        """Ids behind one another, and 0 for padding: (N,)."""
        _, back = self._between(ids_BT.size(1), (1,))
        real_N = ids_BT.flatten().index_select(0, back[: self.n_real])
        return pad(real_N, (0, self.n_rows - self.n_real))

    def heads(self, x_NX: Tensor, counts: Sequence[int], d_head: int) -> Sequence[Tensor]:
        there, back = self._between(self.length, tuple(counts))
        B = len(self.lengths_B)
        sizes = tuple(B * count * self.length for count in counts)
        rows = _Moved.apply(x_NX.reshape(-1, d_head), there, back, sizes, self.n_real * sum(counts))
        return [part.view(B, count, self.length, d_head) for part, count in zip(rows, counts, strict=True)]

    def merge(self, x_BHLK: Tensor) -> Tensor:
        _, n_heads, _, d_head = x_BHLK.shape
        there, back = self._between(self.length, (n_heads,))
        rows = x_BHLK.reshape(-1, d_head)
        (x,) = _Moved.apply(rows, back, there, (self.n_rows * n_heads,), len(rows))
        return x.view(self.n_rows, n_heads * d_head)

    def _between(self, length: int, counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Which of the N x sum(counts) packed vectors stands at each place of (B, count, length), one count after the
        other, and the reverse; at places without a token the last packed one, for padding any place."""
        found = self._maps.get((length, *counts))
        if found is None:
            places = self._places.get(length)
            if places is None:
                places = self._places[length] = _Places(self.lengths_B, length, self.n_rows)
            there, back = places.of(counts)
            found = self._maps[length, *counts] = sent(there, self.device), sent(back, self.device)
        return found


class PackedWhole(Packed):
    """The same where attention takes heads wherever they lie, as PyTorch's own does: tokens are moved with all heads
    that they have, and only looked at in parts. Attention that is written out would copy them once more."""

    def heads(self, x_NX: Tensor, counts: Sequence[int], d_head: int) -> Sequence[Tensor]:
        there, back = self._between(self.length, (1,))
        (rows,) = _Moved.apply(x_NX, there, back, (len(there),), self.n_real)
        parts = rows.view(len(self.lengths_B), self.length, -1, d_head).split(list(counts), dim=2)
        return [part.transpose(1, 2) for part in parts]

    def merge(self, x_BHLK: Tensor) -> Tensor:
        there, back = self._between(self.length, (1,))
        rows = x_BHLK.transpose(1, 2).flatten(2).flatten(0, 1)
        (x_NX,) = _Moved.apply(rows, back, there, (self.n_rows,), len(rows))
        return x_NX


class _Places:
    """Where tokens stand when each sentence has a row of this length, and where vectors of theirs do.

    M real tokens, one behind the other
    """

    def __init__(self, lengths_B: Tensor, length: int, n_rows: int) -> None:
        real_BL = torch.arange(length) < lengths_B[:, None]
        self.sentence_M1, self.column_M1 = real_BL.nonzero().split(1, dim=1)
        self.token_BL = torch.full(real_BL.shape, n_rows - 1)
        self.token_BL[self.sentence_M1, self.column_M1] = torch.arange(len(self.sentence_M1))[:, None]
        self.n_rows = n_rows

    def of(self, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Packed._between`."""
        (B, L), total = self.token_BL.shape, sum(counts)
        before = [sum(counts[:part]) for part in range(len(counts))]
        vectors_BL = self.token_BL * total
        there = torch.cat(
            [
                (vectors_BL[:, None] + torch.arange(first, first + count)[:, None]).flatten()
                for first, count in zip(before, counts, strict=True)
            ]
        )
        # Of each head: where the first vector of the first sentence stands, and how far from there that of the next.
        firsts_H = torch.tensor(
            [L * (B * first + head) for first, count in zip(before, counts, strict=True) for head in range(count)]
        )
        steps_H = torch.tensor([L * count for count in counts for _ in range(count)])
        back = torch.zeros(self.n_rows, total, dtype=torch.int64)
        torch.add(self.sentence_M1 * steps_H + self.column_M1, firsts_H, out=back[: len(self.sentence_M1)])
        return there, back.flatten()


class _Moved(torch.autograd.Function):
    """Vectors taken to other places, each of them once; the way back moves their gradients.

    n_real: how many of the vectors somebody reads; the gradient of those behind is zero.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, there: Tensor, back: Tensor, sizes: tuple[int, ...], n_real: int
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(back)
        ctx.n_real = n_real  # type: ignore[attr-defined]
        return x.index_select(0, there).split(list(sizes))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (back,) = ctx.saved_tensors  # type: ignore[attr-defined]
        grad = grads[0] if len(grads) == 1 else torch.cat(grads)
        moved = grad.index_select(0, back)
        moved[ctx.n_real :] = 0  # type: ignore[attr-defined]
        return moved, None, None, None, None


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on that device, without waiting for it where that is a CUDA device, which fetches by itself what lies
    in pinned memory. For Apple's, PyTorch does not keep what is still to be fetched."""
    is_fetched = device.type == "cuda"
    if is_fetched and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=is_fetched)


def _one_of_eight(n: int) -> int:
    """n or a little more: one of at most 8 numbers between powers of 2."""
    grain = max(1, 1 << max(0, (n - 1).bit_length() - 4))
    return -(-n // grain) * grain


def _one_of_few(n: int) -> int:
    """n or a little more, so that numbers of about the same size become few: up to 32 of them between powers of 2.

    They lie 16 above those with many factors of 2, as token budgets are, so that a full one has room for a row more.
    """
    grain = max(64, 1 << max(0, n.bit_length() - 6))
    return -(-(n - 16) // grain) * grain + 16
