#!/usr/bin/env python3
"""Makes a small Llama with random weights and a trained tokenizer; runs in the engine's environment.

20 million bfloat16 parameters (hidden 512, 6 layers, 8 heads, 2 key-value heads, tied embeddings), 2048 positions and a
byte-level BPE tokenizer of 4096 entries, trained on texts that every Python carries.  The same Python and libraries give
the same files.  What it answers is noise; what it costs to compute is like a real model of its size.
"""

from __future__ import annotations

import argparse
import os
import pydoc_data.topics
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

# Training on several threads may break ties differently each time.  Set before the library is loaded.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 20_26
VOCABULARY = 4096
POSITIONS = 2048
BEGIN, END, USER, ASSISTANT, SYSTEM = "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"
MODULES = ("argparse", "ast", "datetime", "decimal", "doctest", "difflib", "inspect", "pathlib", "statistics", "typing")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}{{ '\n' + message['content'] | trim + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def texts() -> Iterator[str]:
    """Yield English prose and code that come with Python, always in the same order."""
    topics = pydoc_data.topics.topics
    for name in sorted(topics):
        yield topics[name]
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in MODULES:
        source = library / f"{name}.py"
        if source.exists():
            yield source.read_text(encoding="utf-8")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, USER, ASSISTANT, SYSTEM],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        sys.exit(f"the texts of this Python gave {tokenizer.get_vocab_size()} tokens instead of {VOCABULARY}")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, model_max_length=POSITIONS
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_weights() -> LlamaForCausalLM:
    """Draw the weights."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    """Make both in the folder given with ``--out``."""
    parser = argparse.ArgumentParser(description="Makes a small Llama with random weights.")
    parser.add_argument("--out", required=True, type=Path)
    out = parser.parse_args().out
    make_tokenizer().save_pretrained(str(out))
    model = make_weights()
    model.save_pretrained(str(out))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    sys.stdout.write(f"{millions:.1f} million parameters in {out}\n")


if __name__ == "__main__":
    main()
