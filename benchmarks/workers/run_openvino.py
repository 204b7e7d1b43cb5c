"""OpenVINO GenAI behind the protocol of stepping.py: its continuous batching, step by step."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai
from stepping import Measure, Steps, measured, serve

CACHE_GIBIBYTES = 3
STEP_TOKENS = 4096


def load(model: str, threads: int, slots: int | None) -> Measure:
    settings = openvino_genai.SchedulerConfig()
    settings.cache_size = CACHE_GIBIBYTES
    settings.max_num_batched_tokens = STEP_TOKENS
    if slots is not None:
        settings.max_num_seqs = slots
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        model,
        settings,
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"},
    )

    def begin(prompts: list[list[int]], lengths: list[int]) -> Steps:
        handles = []
        for number, (prompt, generated) in enumerate(zip(prompts, lengths, strict=True)):
            wanted = openvino_genai.GenerationConfig()
            wanted.max_new_tokens = generated
            wanted.ignore_eos = True
            wanted.do_sample = False
            tokens = openvino.Tensor(np.array([prompt], np.int64))
            handles.append(pipeline.add_request(number, tokens, wanted))
        made = [0] * len(prompts)

        def step() -> list[int]:
            pipeline.step()
            for number, handle in enumerate(handles):
                if handle.can_read():
                    made[number] += sum(len(each.generated_ids) for each in handle.read().values())
            return made

        def finish() -> None:
            while pipeline.has_non_finished_requests():
                pipeline.step()

        return Steps(step, finish)

    return lambda point: measured("OpenVINO", begin, point)


if __name__ == "__main__":
    serve(load)
