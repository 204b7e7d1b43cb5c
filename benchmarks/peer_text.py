"""Free-running greedy text beside a peer's, prompt by prompt.

    python benchmarks/peer_text.py [--model smollm2-135m|gemma3-270m] [--json FILE]

The peer is llama.cpp; what it said is recorded in tests/data/goldens. Both continue 20 prompts by
64 greedy tokens with ends of sequence banned. Rounding differs, so texts part at near ties and then
go their own way; the table shows how long they agree, and both texts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from farthing import Engine, SamplingParams

GOLDENS = Path(__file__).parent.parent / "tests" / "data" / "goldens"
FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.json",
    "gemma3-270m": "gemma-3-270m-Q4_K_M.json",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=FILES, default="smollm2-135m")
    parser.add_argument("--json", type=Path, help="also write the texts here")
    arguments = parser.parse_args()
    golden = json.loads((GOLDENS / FILES[arguments.model]).read_text(encoding="utf-8"))["greedy"]
    with Engine.load(arguments.model, context_length=512) as engine:
        prompts = [engine.tokenizer.encode(each["prompt"]) for each in golden]
        found = [
            engine.generate(prompt, SamplingParams(max_tokens=64, min_tokens=64))
            for prompt in prompts
        ]
    table = Table("same tokens", "prompt", "farthing", "llama.cpp", show_lines=True)
    rows = []
    for each, ours in zip(golden, found, strict=True):
        theirs = [step["id"] for step in each["steps"]]
        pairs = zip(ours.token_ids, theirs, strict=True)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(theirs))
        rows.append(
            {"prompt": each["prompt"], "same": same, "ours": ours.text, "theirs": each["text"]}
        )
        table.add_row(f"{same} of {len(theirs)}", each["prompt"], ours.text, each["text"])
    Console().print(table)
    whole = sum(row["same"] == 64 for row in rows)
    print(f"{whole} of {len(rows)} texts are the peer's to the last token")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
