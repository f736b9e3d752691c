"""The likeliest text after a prompt, by Hugging Face's own tools:  python dev/reference/greedy.py DIR PROMPT TOKENS"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
folder, prompt, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
ids = torch.tensor([tokenizer(prompt).input_ids])
out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0)
print(tokenizer.decode(out[0], skip_special_tokens=True))
