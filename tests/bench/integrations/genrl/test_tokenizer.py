"""The tokenizer that leaves no gap between a prompt and its completion in GenRL's trainer."""

import torch
from transformers import AutoTokenizer

from thiefbench.integrations.genrl.tokenizer import CompletionsPaddedRight
from thiefbench.zoo.models import resolve

CHATS = [[{"role": "user", "content": text}] for text in ("one", "one and two and three")]
COMPLETIONS = ["7", "7 + 7 = 14"]


def test_prompts_are_padded_on_the_left_and_completions_on_the_right() -> None:
    plain = AutoTokenizer.from_pretrained(resolve("micro-math"), padding_side="left")
    tokenizer = CompletionsPaddedRight(plain)
    prompts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in CHATS]
    options = {"return_tensors": "pt", "padding": True, "truncation": True}
    read, written = tokenizer(text=prompts, **options), tokenizer(text=COMPLETIONS, **options)
    assert read.attention_mask[0, 0] == 0, "the shorter prompt begins with padding"
    assert read.attention_mask[:, -1].tolist() == [1, 1], "and ends where its completion begins"
    assert written.attention_mask[:, 0].tolist() == [1, 1]
    assert written.attention_mask[0, -1] == 0
    for ids, mask, text in zip(written.input_ids, written.attention_mask, COMPLETIONS, strict=True):
        assert torch.equal(ids[mask.bool()], plain(text, return_tensors="pt").input_ids[0]), "only padding differs"
    assert torch.equal(read.input_ids, plain(text=[str(each) for each in prompts], **options).input_ids)


def test_everything_else_is_the_tokenizer_s_own() -> None:
    plain = AutoTokenizer.from_pretrained(resolve("micro-math"), padding_side="left")
    tokenizer = CompletionsPaddedRight(plain)
    assert tokenizer("7 + 7").input_ids == plain("7 + 7").input_ids, "of a single text"
    assert tokenizer.eos_token_id == plain.eos_token_id
    assert tokenizer.batch_decode([[5, 6]]) == plain.batch_decode([[5, 6]])
    chat = tokenizer.apply_chat_template(CHATS[0], tokenize=True, add_generation_prompt=True)
    assert chat == plain.apply_chat_template(CHATS[0], tokenize=True, add_generation_prompt=True)
