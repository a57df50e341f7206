"""Train a small character-level transformer on a text of yours, with clearhead's attention.

    python examples/train_text.py my.txt
    python examples/train_text.py my.txt --steps 500 --context 512 --layers 6 --channels 384

Two copies of the model start from the same numbers and see the same batches. One uses
clearhead.torch.scaled_dot_product_attention, the other PyTorch's own kernel; they take turns, step
by step, so that both times are of the same machine at the same moment. Printed at the end: the
loss of both, tokens per second of both, and a sample. Ctrl-C stops early and prints the same.

Needs PyTorch: pip install 'clearhead[torch]'
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from clearhead.torch import scaled_dot_product_attention

Attend = Callable[..., Tensor]  # (q, k, v, is_causal=True) -> out, all (B, H, T, D)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, channels: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm_1, self.norm_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.project = nn.Linear(channels, 3 * channels, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        qkv = self.project(self.norm_1(x)).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        mixed = self.attend(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, C))
        return x + self.feed_forward(self.norm_2(x))


class Writer(nn.Module):
    """Characters in, logits of the next character out: (B, T) -> (B, T, V)."""

    def __init__(
        self, characters: int, context: int, channels: int, heads: int, layers: int, attend: Attend
    ) -> None:
        super().__init__()
        self.context = context
        self.character = nn.Embedding(characters, channels)
        self.position = nn.Embedding(context, channels)
        self.blocks = nn.Sequential(*(Block(channels, heads, attend) for _ in range(layers)))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, characters, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                last = name.endswith(("out.weight", "feed_forward.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if last else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        return self.head(self.norm(self.blocks(self.character(ids) + self.position(places))))

    @torch.no_grad()
    def write(self, ids: list[int], count: int, generator: torch.Generator) -> list[int]:
        """`ids` and `count` more characters, drawn from the model's probabilities."""
        for _ in range(count):
            logits = self(torch.tensor([ids[-self.context :]]))[0, -1]
            ids = [*ids, int(torch.multinomial(logits.softmax(0), 1, generator=generator))]
        return ids


class Learner:
    """A model, its optimiser, and what its steps cost and brought."""

    def __init__(self, name: str, model: Writer, rate: float) -> None:
        self.name, self.model = name, model
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, x: Tensor, y: Tensor) -> None:
        start = perf_counter()
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.seconds.append(perf_counter() - start)
        self.losses.append(loss.item())

    def tokens_per_second(self, tokens: int) -> float:
        """From the median step; the first one warms up and does not count."""
        return tokens / statistics.median(self.seconds[1:] or self.seconds)


def batches(
    data: Tensor, batch: int, context: int, steps: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """`steps` pairs (x, y), each (B, T); y is x one character later."""
    for _ in range(steps):
        starts = torch.randint(len(data) - context, (batch,), generator=generator).tolist()
        yield (
            torch.stack([data[s : s + context] for s in starts]),
            torch.stack([data[s + 1 : s + context + 1] for s in starts]),
        )


def arguments(args: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, help="a UTF-8 text")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, help="characters to write at the end")
    given = parser.parse_args(args)
    for name in ("steps", "batch", "context", "layers", "heads", "channels"):
        if getattr(given, name) < 1:
            parser.error(f"{name}: {getattr(given, name)}, must be at least 1")
    if given.channels % given.heads:
        parser.error(f"channels, heads: {given.channels}, {given.heads}, must divide")
    try:
        given.text = given.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"file: {given.file}: {error}, must be a UTF-8 text")
    if len(given.text) < given.context + 2:
        parser.error(
            f"file: {len(given.text)} characters, must be more than context + 1 = "
            f"{given.context + 1}"
        )
    return given


def main(args: list[str] | None = None) -> None:
    given = arguments(args)
    characters = sorted(set(given.text))
    number = {c: i for i, c in enumerate(characters)}
    data = torch.tensor([number[c] for c in given.text])
    shape = (len(characters), given.context, given.channels, given.heads, given.layers)
    learners = []
    for name, attend in (
        ("clearhead", scaled_dot_product_attention),
        ("PyTorch", F.scaled_dot_product_attention),
    ):
        torch.manual_seed(given.seed)  # both start from the same numbers
        learners.append(Learner(name, Writer(*shape, attend), given.rate))
    count = sum(p.numel() for p in learners[0].model.parameters())
    print(f"{len(data):,} characters, {len(characters)} different; {count:,} parameters")

    generator = torch.Generator().manual_seed(given.seed)
    rounds = batches(data, given.batch, given.context, given.steps, generator)
    console = Console(stderr=True)
    try:
        for i, (x, y) in enumerate(
            track(rounds, "training", given.steps, console=console, disable=not console.is_terminal)
        ):
            for learner in learners if i % 2 == 0 else learners[::-1]:  # nobody always goes first
                learner.step(x, y)
    except KeyboardInterrupt:
        print(f"stopped after {len(learners[-1].losses)} of {given.steps} steps", file=sys.stderr)
    if not all(learner.losses for learner in learners):
        return

    tokens = given.batch * given.context
    print(f"{'':10} {'first loss':>10} {'last loss':>10} {'tokens/s':>10}")
    for learner in learners:
        first, last = learner.losses[0], learner.losses[-1]
        speed = learner.tokens_per_second(tokens)
        print(f"{learner.name:10} {first:10.4f} {last:10.4f} {speed:10,.0f}")
    written = learners[0].model.write(data[:1].tolist(), given.sample, generator)
    print("\n" + "".join(characters[i] for i in written))


if __name__ == "__main__":
    main()
