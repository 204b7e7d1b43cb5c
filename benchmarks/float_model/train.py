"""Trains the float model and writes it where `farthing` finds it under the name `float`.

    python benchmarks/float_model/train.py [--work FOLDER] [--steps N] [--out FOLDER]

A model of 3.7 million parameters whose weights were never on a quantiser's grid: the reference for
what needs float weights. Gradients run through the torch backend's own operations. All that is
random follows from the seed: bit for bit on one kind of processor. The work folder keeps the
corpora and a checkpoint: what was interrupted goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from pathlib import Path
from typing import Any

import corpus
import model as architecture
import numpy as np
import torch

import farthing
from farthing.backends.torch import TorchBackend
from farthing.files.checkpoint import open_checkpoint
from farthing.models.decoder import MODULES
from farthing.models.load import load_model

ROOT = Path(__file__).parents[2]
OUT = ROOT / "src" / "farthing" / "files" / "float_model"
VALIDATION = ROOT / "tests" / "data" / "float_model" / "validation.txt"
SEED = 20
STEPS = 1200
SEQUENCES = 8
WARM_UP = 60
PEAK_RATE, LAST_RATE = 3e-3, 1e-4
WEIGHT_DECAY = 0.1
NOVELS_SHARE = 0.6
"""Of the sequences: prose is what tests are made of, and novels are a third of the text."""
CHECKPOINT_SECONDS = 120
VALIDATE_EVERY = 200


_CARD = """\
# The float model

{parameters:,} parameters in Llama's layout, trained in float and stored in float16: its weights
were never on a quantiser's grid. It is the reference for measurements that need such weights (level
placement, block sizes, GPTQ, AWQ, drafts), and a poor writer: it has read {tokens:,} tokens.

- Trained on four novels of Jane Austen (Emma, Mansfield Park, Pride and Prejudice, Sense and
  Sensibility), without the last 20,000 characters of each, and on the plays and poems of
  Shakespeare. All are in the public domain. Persuasion, Northanger Abbey and Newton's Opticks were
  left for tests and calibration.
- Perplexity on what was left of the four novels: {validation_perplexity:.2f}, over windows of 512
  tokens. Its tokens are its own, so no other model's perplexity compares.
- {steps:,} steps, seed {seed}; the curves are in training.json. `benchmarks/float_model/train.py`
  in farthing's sources makes it again.
- Licence: Apache-2.0, as farthing itself.
"""


class Run:
    """One training run: weights, optimiser, and the losses so far. `step` steps are done."""

    def __init__(self, work: Path, steps: int) -> None:
        corpus.fetch(work)
        novels, plays, self.validation_text = corpus.read(work)
        self.work, self.steps, self.step = work, steps, 0
        self.losses: list[float] = []
        self.validation: list[tuple[int, float]] = []
        self.seconds = 0.0
        initial = work / "initial"
        self.tokenizer = architecture.train_tokenizer(novels + plays)
        architecture.write_folder(initial, self.tokenizer, architecture.initial_weights(SEED))
        with open_checkpoint(initial) as checkpoint:
            self.backend = TorchBackend(load_model(checkpoint))
        for weight in self.backend.parameters.values():
            weight.requires_grad_()
        matrices = [w for w in self.backend.parameters.values() if w.ndim == 2]
        gains = [w for w in self.backend.parameters.values() if w.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": WEIGHT_DECAY},
                {"params": gains, "weight_decay": 0.0},
            ],
            betas=(0.9, 0.95),
        )
        self.texts = [self._stream(novels), self._stream(plays)]
        self.held_out = self._stream([self.validation_text])
        self._restore()

    def train(self) -> None:
        """Trains to the last step, printing the loss curve."""
        started = saved = time.monotonic()
        earlier = self.seconds
        while self.step < self.steps:
            self._train_step()
            now = time.monotonic()
            self.seconds = earlier + now - started
            if self.step % 20 == 0 or self.step == self.steps:
                recent = float(np.mean(self.losses[-20:]))
                print(
                    f"step {self.step:5} of {self.steps}  loss {recent:.4f}  "
                    f"{self.step * SEQUENCES * architecture.CONTEXT / self.seconds:,.0f} tokens/s",
                    flush=True,
                )
            if self.step % VALIDATE_EVERY == 0 or self.step == self.steps:
                perplexity = self.validation_perplexity()
                self.validation.append((self.step, perplexity))
                print(f"step {self.step:5}  validation perplexity {perplexity:.2f}", flush=True)
            if now - saved > CHECKPOINT_SECONDS or self.step == self.steps:
                self._save()
                saved = now

    def validation_perplexity(self) -> float:
        """Over non-overlapping windows of the held-out text; a window's first token is given."""
        total = count = 0.0
        with torch.no_grad():
            for ids in np.array_split(
                self.held_out, math.ceil(len(self.held_out) / architecture.CONTEXT)
            ):
                total += float(self._loss(ids)) * (len(ids) - 1)
                count += len(ids) - 1
        return math.exp(total / count)

    def export(self, folder: Path) -> None:
        """Writes the trained model in float16, and beside it what its training was."""
        trained = {
            _name_in_file(name): weight.detach().numpy().astype(np.float16)
            for name, weight in self.backend.parameters.items()
        }
        for weight in self.backend.parameters.values():
            weight.data = weight.data.half().float()
        architecture.write_folder(folder, self.tokenizer, trained)
        if folder == OUT:
            VALIDATION.parent.mkdir(parents=True, exist_ok=True)
            VALIDATION.write_text(self.validation_text, encoding="utf-8")
        card: dict[str, Any] = {
            "seed": SEED,
            "steps": self.steps,
            "tokens": self.steps * SEQUENCES * architecture.CONTEXT,
            "parameters": sum(w.numel() for w in self.backend.parameters.values()),
            "validation_perplexity": self.validation_perplexity(),
            "trained_on": [*corpus.NOVELS, "shakespeare's plays and poems"],
            "validation_curve": self.validation,
            "loss_curve": [float(np.mean(part)) for part in np.array_split(self.losses, 50)],
            "seconds": round(self.seconds),
            "torch": torch.__version__,
            "farthing": farthing.__version__,
        }
        (folder / "training.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(_CARD.format_map(card), encoding="utf-8")

    def _stream(self, texts: list[str]) -> np.ndarray:
        encoded = self.tokenizer.encode_batch(texts)
        return np.concatenate([np.array([*each.ids, 0], np.int64) for each in encoded])

    def _loss(self, ids: np.ndarray) -> torch.Tensor:
        logits = self.backend.forward(ids[:-1].tolist())
        return torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(ids[1:]))

    def _train_step(self) -> None:
        generator = np.random.default_rng([SEED, self.step])
        total = 0.0
        for _ in range(SEQUENCES):
            text = self.texts[int(generator.random() >= NOVELS_SHARE)]
            start = int(generator.integers(len(text) - architecture.CONTEXT))
            # Products in bfloat16, half the time; weights, gradients and sums stay in float32.
            with torch.autocast("cpu", torch.bfloat16):
                loss = self._loss(text[start : start + architecture.CONTEXT + 1]) / SEQUENCES
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.backend.parameters.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = _rate(self.step, self.steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(total)
        self.step += 1

    def _save(self) -> None:
        state = {
            "steps": self.steps,
            "step": self.step,
            "losses": self.losses,
            "validation": self.validation,
            "seconds": self.seconds,
            "parameters": {name: w.detach() for name, w in self.backend.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, self.work / "checkpoint.new")
        (self.work / "checkpoint.new").replace(self.work / "checkpoint.pt")

    def _restore(self) -> None:
        path = self.work / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        if state["steps"] != self.steps:
            raise SystemExit(f"{path} is of a run of {state['steps']} steps: remove it")
        self.step, self.losses, self.seconds = state["step"], state["losses"], state["seconds"]
        self.validation = state["validation"]
        for name, weight in self.backend.parameters.items():
            weight.data.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(state["optimizer"])


def _name_in_file(name: str) -> str:
    """What a folder of safetensors calls the Program's weight `name`."""
    module, suffix = name.rsplit(".", 1)
    template = re.sub(r"\d+", "{layer}", module)
    layer = "".join(re.findall(r"\d+", module))
    return f"{MODULES[template][1].format(layer=layer)}.{suffix}"


def _rate(step: int, steps: int) -> float:
    """The learning rate: linear to its peak, then half a cosine down to its last."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LAST_RATE + (PEAK_RATE - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "float_model")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=OUT, help="the model's folder")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run = Run(arguments.work, arguments.steps)
    print(f"{sum(map(len, run.texts)):,} tokens to train on, {len(run.held_out):,} held out")
    run.train()
    run.export(arguments.out)
    print(f"{arguments.out}: validation perplexity {run.validation_perplexity():.2f}")


if __name__ == "__main__":
    main()
