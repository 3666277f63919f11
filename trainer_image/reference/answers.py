"""Greedy answers of a Hugging Face chat model under transformers and torch, in float32 on CPU.

Run with the reference environment's Python:  python answers.py FOLDER MAX_NEW_TOKENS < PROMPTS.json
PROMPTS.json is a list of questions; each is asked alone, in the model's own chat template. Prints a list of answers.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    folder, limit = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in json.load(sys.stdin):
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.no_grad():
            whole = model.generate(**asked, max_new_tokens=limit, do_sample=False)
        answers.append(tokenizer.decode(whole[0, asked["input_ids"].shape[1] :], skip_special_tokens=True))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
