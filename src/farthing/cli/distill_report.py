"""What farthing distill tells when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farthing.forge.distill_receipt import CURVE_FILE, RECEIPT_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farthing.forge.distill_receipt import Distilled


def print_report(made: Distilled) -> None:
    """The model, how far it came, and what it is worth."""
    first, last = made.history[0], made.last
    layers = ", ".join(map(str, made.wish.layers))
    print(
        f"{made.path}: a {made.wish.kind} of {made.teacher}, layers {layers}, a head of "
        f"{made.head_tokens:,} tokens, {made.bytes / 1e6:,.1f} MB"
    )
    print(
        f"learnt   from {made.text_tokens:,} tokens, {last.tokens:,} with repeats, in "
        f"{made.steps:,} step{'' if made.steps == 1 else 's'}; writing and training took "
        f"{made.seconds / 60:,.0f} min"
    )
    print(
        f"held out {made.held_out_tokens:,} tokens: divergence {first.divergence:.3f} -> "
        f"{last.divergence:.3f} nats, acceptance {first.acceptance:.1%} -> {last.acceptance:.1%}, "
        f"the likeliest token is the teacher's {last.agreement:.1%}"
    )
    gain = made.gain
    if gain is not None:
        print(f"right    greedy {_shares(gain.greedy)}; sampled {_shares(gain.sampled)}, by place")
        print(
            f"gain     x{gain.speed_up:.2f} ({gain.low:.2f} to {gain.high:.2f}) with auto, one "
            f"text at a time, {gain.guessed_share:.0%} of the tokens guessed"
        )
        if gain.used and gain.speed_up > 1:
            print(f"use it   farthing serve MODEL --speculate draft={made.path}")
        elif gain.used:
            print(
                "no gain  auto uses it, and texts come no faster here; more hours may change that"
            )
        else:
            print(
                "declined auto would not use it: its guesses cost more than they save here; more "
                "hours of training raise what is right"
            )
    if made.receipt is not None:
        print(f"quality  {made.receipt.summary()}")
    print(f"inside   {RECEIPT_FILE}, {CURVE_FILE}")


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{each:.0%}" for each in shares) or "none"
