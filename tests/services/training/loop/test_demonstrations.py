"""References as rollouts: what supervised training learns from."""

from typing import Any

import pytest

from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import ChatForm
from contracts.rollout import FinishReason, Lease, Prompt, Sampling
from services.data.tokens.prompt_tokens import PromptTokens
from services.training.loop.demonstrations import Demonstrations
from tests.chat_templates import TEMPLATES, chat_tokenizer
from tests.models import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("model")))


def lease(tokenizer: Any, text: str, *references: str) -> Lease:
    tokens = tuple(tokenizer(text)["input_ids"])
    return Lease(7, Prompt("p", text, references), tokens, 3, 0, Sampling(max_tokens=4))


def test_each_reference_is_a_rollout_that_ends(tokenizer: Any) -> None:
    leased = lease(tokenizer, "3 5", "6 8", "9")
    batch = Demonstrations(tokenizer, max_tokens=4, loss_on="response")([leased])
    first, second = batch.rollouts
    assert first.tokens == (*leased.tokens, *tokenizer("6 8")["input_ids"], tokenizer.eos_token_id)
    assert first.loss_mask == (0, 0, 1, 1, 1)
    assert (first.lease_id, first.group, first.text) == (7, 3, "6 8")
    assert second.loss_mask == (0, 0, 1, 1)
    assert {first.finish_reason, second.finish_reason} == {FinishReason.STOP}


def test_a_reference_that_is_too_long_is_cut_and_teaches_no_end(tokenizer: Any) -> None:
    (rollout,) = Demonstrations(tokenizer, 4, "response")([lease(tokenizer, "3", "4 5 6 7 8")]).rollouts
    assert rollout.turns[0].tokens == tuple(tokenizer("4 5 6 7")["input_ids"])
    assert rollout.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(("side", "kept"), [("left", "4 5"), ("right", "2 3")])
def test_a_prompt_is_cut_beside_its_reference_where_the_window_ends(
    tokenizer: Any, side: Any, kept: str
) -> None:
    """Five tokens in all: the reference and its end take three of them."""
    learn = Demonstrations(tokenizer, 4, "response", window=5, side=side)
    (rollout,) = learn([lease(tokenizer, "2 3 4 5", "6 8")]).rollouts
    assert rollout.tokens == (*tokenizer(f"{kept} 6 8")["input_ids"], tokenizer.eos_token_id)
    assert rollout.loss_mask == (0, 0, 1, 1, 1)
    (rollout,) = Demonstrations(tokenizer, 9, "text", 5)([lease(tokenizer, "2 3", "4 5 6 7 8")]).rollouts
    assert rollout.tokens == tuple(tokenizer("3 4 5 6 7")["input_ids"])  # one token of the prompt stays


def test_only_where_references_are_whole_texts_do_they_lose_their_prompts(tokenizer: Any) -> None:
    leases = [lease(tokenizer, "3 5", "3 5 9")]
    for whole, learned in ((True, "9"), (False, "3 5 9")):  # "Hi" may be answered by "Hi there"
        (rollout,) = Demonstrations(tokenizer, 4, "response", whole_references=whole)(leases).rollouts
        assert rollout.turns[0].tokens == (*tokenizer(learned)["input_ids"], tokenizer.eos_token_id)


def test_the_whole_text_counts_where_rl4lms_counts_it(tokenizer: Any) -> None:
    (rollout,) = Demonstrations(tokenizer, 4, "text")([lease(tokenizer, "3 5", "6 8")]).rollouts
    assert rollout.tokens == tuple(tokenizer("3 5 6 8")["input_ids"])  # no end
    assert rollout.loss_mask == (0, 1, 1, 1)


@pytest.mark.parametrize("name", ["default_system", "strips_reasoning", "ends_otherwise"])
def test_a_conversations_reference_is_learned_as_the_assistants_answer(name: str) -> None:
    its = chat_tokenizer(TEMPLATES[name])
    chat = Chat(its, ChatForm())
    messages = [{"role": "user", "content": "3 + 4 ?"}]
    prompt = Prompt("0", "3 + 4 ?", references=("It is 7.",), meta={"messages": messages})
    lease = Lease(0, prompt, PromptTokens(its, chat=chat)(prompt), 0, 0, Sampling(max_tokens=64))
    (rollout,) = Demonstrations(its, 64, "response", chat=chat)([lease]).rollouts
    whole = its.apply_chat_template([*messages, {"role": "assistant", "content": "It is 7."}], tokenize=False)
    assert its.decode(rollout.tokens) == whole.rstrip("\n")
    assert (rollout.finish_reason, rollout.turns[0].observation) == (
        FinishReason.STOP,
        chat.of_prompt(prompt),
    )
