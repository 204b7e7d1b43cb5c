"""vLLM on CPU behind the protocol of stepping.py: its engine in this process, step by step."""

from __future__ import annotations

import os

from stepping import Measure, Steps, measured, serve

CONTEXT = 4352
SEQUENCES = 64


def load(model: str, threads: int, slots: int | None) -> Measure:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "3"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # The environment is read on import.
    from vllm import LLM, SamplingParams

    engine = LLM(
        model,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=CONTEXT,
        max_num_seqs=SEQUENCES if slots is None else slots,
        enable_prefix_caching=False,
    ).llm_engine

    def begin(prompts: list[list[int]], lengths: list[int]) -> Steps:
        for number, (prompt, generated) in enumerate(zip(prompts, lengths, strict=True)):
            wanted = SamplingParams(
                temperature=0.0, max_tokens=generated, ignore_eos=True, detokenize=False
            )
            engine.add_request(str(number), {"prompt_token_ids": prompt}, wanted)
        made = [0] * len(prompts)

        def step() -> list[int]:
            for output in engine.step():
                made[int(output.request_id)] = len(output.outputs[0].token_ids)
            return made

        def finish() -> None:
            while engine.has_unfinished_requests():
                engine.step()

        return Steps(step, finish)

    return lambda point: measured("vLLM", begin, point)


if __name__ == "__main__":
    serve(load)
