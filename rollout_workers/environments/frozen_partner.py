"""Partner that never learns: a causal model with separate weights, in the environment's process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from contracts.adapters.merging import whole_model
from contracts.conversations.chat import Chat
from contracts.conversations.chat_settings import AUTO, ChatForm, ChatSettings
from contracts.errors import InputError
from contracts.network.hub import use_cache_if_unreachable
from contracts.rollout import Sampling
from contracts.settings import Settings
from contracts.windows import window_of
from rollout_workers.engines.base import Engine, Request
from rollout_workers.environments.partner_texts import PartnerTexts, PlainTalk, TalkByTemplate
from rollout_workers.settings import RolloutSettings

if TYPE_CHECKING:
    from rollout_workers.engines.transformers_engine import TransformersEngine

MODEL = "environment.partner_options.model"
CHAT = "environment.partner_options.chat"


class FrozenPartner(Settings):
    """Settings of a frozen partner, which reads the dialogue like the model, or only the dialogue's end.

    It reads `u1 <EOU> u2 <EOU>`, or a chat template with the partner as the assistant.

    Example: `environment.partner=frozen environment.partner_options={model: gpt2, temperature: 0}`
    """

    model: str = Field(min_length=1)  # a folder in Hugging Face format, or a hub name
    revision: str | None = None
    max_tokens: int = Field(default=20, ge=1)  # token limit of an utterance
    temperature: float = Field(default=1.0, ge=0)  # 0: greedy
    top_k: int = Field(default=0, ge=0)  # 0: no limit
    # As in model.chat. auto: the tokenizer's template, if it has one and the model also reads by one
    chat: ChatSettings = ChatSettings()

    def check_model(self, kind: str, is_encoder_decoder: bool, window: int | None) -> None:
        """Check by its files whether a model can be a partner.

        Raises:
            InputError: the model is not causal, or leaves no room for a prompt.
        """
        if is_encoder_decoder:
            raise InputError(f"{MODEL}={self.model} is an encoder-decoder ({kind}); expected a causal model")
        if window is not None and self.max_tokens >= window:
            raise InputError(
                f"environment.partner_options.max_tokens={self.max_tokens} leaves no room for the dialogue: "
                f"the window of {self.model} is {window} tokens"
            )

    def chat_form(self, by_template: bool, has_template: bool) -> ChatForm | None:
        """Return the chat template by which the partner reads; None: it reads plain text.

        Args:
            by_template: whether the model reads the dialogue by a chat template.
            has_template: whether the partner's tokenizer has one.

        Raises:
            InputError: a required template is missing, or its file can't be read; or the system message or
                options lack a template.
        """
        is_wanted = self.chat.is_explicit or (by_template and self.chat.template == AUTO)
        form = self.chat.form() if is_wanted else None
        if form is not None and (form.template is not None or has_template):
            return form
        if self.chat.is_explicit:
            raise InputError(
                f"{CHAT}.template={self.chat.template}: the tokenizer of {self.model} has no chat template; "
                f"expected a file with one, or none for plain text"
            )
        if refused := [name for name in ("system", "options") if getattr(self.chat, name)]:
            raise InputError(
                f"{CHAT}.{refused[0]} is for a chat template, but this partner reads plain text: expected "
                f"{CHAT}.template=tokenizer or a file with it, or leave it out"
            )
        return None

    def engine(self, max_concurrent: int = 1) -> "TransformersEngine":
        """Load the model into a separate engine, on the CPU.

        Raises:
            InputError: the model does not load, is not causal, or leaves no room for a prompt.
        """
        from transformers import AutoConfig, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        from rollout_workers.engines.transformers_engine import TransformersEngine

        disable_progress_bar()  # there are as many partners as environments
        use_cache_if_unreachable()
        where, path = f"{MODEL}={self.model}", whole_model(self.model, self.revision, where=MODEL)
        revision = self.revision if path == self.model else None
        with _refusing(where):
            config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
        window = window_of(tokenizer, config)
        self.check_model(config.model_type, config.is_encoder_decoder, window)
        settings = RolloutSettings(engine="transformers", dtype="float32", max_concurrent=max_concurrent)
        with _refusing(where):
            return TransformersEngine(path, path, window, settings, revision=revision, device="cpu")

    def sampling(self, stop: tuple[str, ...] = ()) -> Sampling:
        """Return the partner's sampling."""
        return Sampling(max_tokens=self.max_tokens, temperature=self.temperature, top_k=self.top_k, stop=stop)

    def load(self, separator: str, by_template: bool = False) -> "_Speaker":
        """Load the model as a partner in a dialogue.

        Args:
            by_template: whether the model reads the dialogue by a chat template.

        Raises:
            InputError: `engine` does not load, or a required chat template is missing.
        """
        engine = self.engine()
        tokenizer, window = engine.tokenizer, engine.window
        assert window is not None, "every engine gets a window"
        form = self.chat_form(by_template, bool(getattr(tokenizer, "chat_template", None)))
        texts: PartnerTexts = PlainTalk(tokenizer, separator)
        if form is not None:
            texts = TalkByTemplate(tokenizer, Chat(tokenizer, form), separator)
        return _Speaker(engine, texts, self.sampling(texts.stop), window - self.max_tokens)


class _Speaker:
    """Implementation of `rollout_workers.environments.partners.Partner` with an engine."""

    def __init__(self, engine: Engine, texts: PartnerTexts, sampling: Sampling, room: int) -> None:
        self._engine, self._texts, self._sampling, self._room = engine, texts, sampling, room

    def reply(self, history: Sequence[str], seed: int) -> str:
        tokens = self._texts.tokens(history, self._room)
        if not tokens:  # nothing to answer
            return ""
        self._engine.abort_all()  # an utterance may have been given up halfway
        self._engine.add(Request(0, tokens, self._sampling, seed))
        while True:
            for generation in self._engine.step():
                return self._texts.heard(generation)


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Turn errors of any kind into an InputError, because transformers raises all kinds."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{where} does not load: {type(error).__name__}: {error}") from error
