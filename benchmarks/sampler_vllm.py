"""The part of `sampler_peers` that runs where vLLM is installed: reads work, answers with how many tokens were drawn.

Its argument is a JSON object of settings; each line of its input is a list of [prompt, new tokens, adapter or -1].
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to standard output
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    settings = json.loads(sys.argv[1])
    folders = settings["adapters"]
    lora = {"enable_lora": True, "max_loras": len(folders), "max_lora_rank": settings["rank"]} if folders else {}
    llm = LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=256,
        enable_prefix_caching=False,
        **lora,
    )
    requests = [LoRARequest(f"a{number}", number + 1, folder) for number, folder in enumerate(folders)]
    print('"ready"', file=answers, flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        params = [
            SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False) for _, new, _ in work
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt, _, _ in work]
        chosen = [requests[adapter] for _, _, adapter in work] if requests else None
        outputs = llm.generate(prompts, params, lora_request=chosen, use_tqdm=False)
        print(sum(len(output.outputs[0].token_ids) for output in outputs), file=answers, flush=True)


if __name__ == "__main__":
    main()
