"""A GGUF file, by gguf's own writer, becomes a model folder: the same logits, tokens and template."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from services.models.files import read_model
from services.models.gguf_files import convert_gguf

END = "<|im_end|>"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}" + END + "{% endfor %}"
HEADS, KEY_HEADS, WIDTH = 4, 2, 64
Q4, Q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Tokenizer]:
    """Return a file of a tiny Llama in 4 and 8 bits, the model with weights so rounded, and its tokenizer."""
    bare = Tokenizer(BPE(unk_token=END))
    bare.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=320, special_tokens=[END], initial_alphabet=ByteLevel.alphabet())
    bare.train_from_iterator(["the camel eats grass and the cow eats hay"] * 3, trainer)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=bare.get_vocab_size(),
            hidden_size=WIDTH,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=128,
            initializer_range=0.2,
            tie_word_embeddings=True,
        )
    )
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(file, model, bare)
    return file, model, bare


def write_gguf(file: Path, model: Any, bare: Tokenizer) -> None:
    """Write as llama.cpp does, and leave the model with the weights that the file's bits stand for."""
    writer = gguf.GGUFWriter(file, "llama")
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(config.vocab_size)
    words = sorted(bare.get_vocab(), key=bare.token_to_id)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if word == END else gguf.TokenType.NORMAL for word in words]
    )
    writer.add_token_merges(merges_of(bare))
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied
            writer.add_tensor(*packed(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed(name: str, weight: torch.Tensor) -> tuple[str, np.ndarray, None, Any]:
    """Return the tensor as the file has it; round the model's own weight to what it stands for."""
    short = name
    for ours, theirs in NAMES.items():
        short = short.replace(ours, theirs)
    if weight.dim() == 1:
        return short, weight.numpy(), None, gguf.GGMLQuantizationType.F32
    kind = Q8 if "embed" in name else Q4
    bits = gguf.quantize(weight.numpy(), kind)
    weight.copy_(torch.from_numpy(gguf.dequantize(bits, kind)))
    heads = {"attn_q": HEADS, "attn_k": KEY_HEADS}.get(short.split(".")[-2])
    if heads:  # llama.cpp rotates neighbours, Hugging Face halves: the file has its rows in another order
        bits = bits.reshape(heads, 2, len(bits) // heads // 2, -1).swapaxes(1, 2).reshape(bits.shape)
    return short, bits, None, kind


def merges_of(bare: Tokenizer) -> list[str]:
    merges = json.loads(bare.to_str())["model"]["merges"]
    return [" ".join(pair) if isinstance(pair, list) else pair for pair in merges]


@pytest.fixture(scope="module")
def converted(written: tuple[Path, Any, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    convert_gguf(written[0], folder)
    return folder


def test_the_folder_computes_what_the_files_weights_compute(written: Any, converted: Path) -> None:
    _, model, _ = written
    tokens = torch.tensor([[5, 9, 200, 31, 7, 0]])
    converted_model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
        torch.testing.assert_close(converted_model(tokens).logits, model(tokens).logits)


def test_the_tokenizer_its_end_and_its_template_come_along(written: Any, converted: Path) -> None:
    _, _, bare = written
    tokenizer = AutoTokenizer.from_pretrained(converted)
    text = "the cow eats a camel, and 37!"
    assert tokenizer(text)["input_ids"] == bare.encode(text).ids
    assert tokenizer.eos_token == END
    chat = [{"role": "user", "content": "the cow"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == f"the cow{END}"


def test_whetstone_takes_the_folder_and_no_half_written_one_is_left(converted: Path) -> None:
    from learner.settings import ModelSettings

    read = read_model(ModelSettings(path=str(converted)))
    # 282 words; a layer: q and o 64 × 64, k and v 32 × 64, the MLP 3 × 96 × 64, 2 norms; and a norm
    assert read.num_parameters == 282 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64) + 64
    assert [path.name for path in converted.parent.iterdir()] == ["tiny"]
