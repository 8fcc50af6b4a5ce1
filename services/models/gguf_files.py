"""Conversion of a GGUF file, as llama.cpp reads it, into a model folder of Hugging Face's format."""

import os
import shutil
from pathlib import Path


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the file's weights (as bfloat16), tokenizer and chat template into a new folder.

    Weights rounded to a few bits stay rounded. The folder appears when all is written.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # read at tqdm's first import
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False).save_pretrained(
        part
    )
    os.rename(part, folder)
