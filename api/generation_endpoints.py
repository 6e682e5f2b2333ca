"""``POST /v1/chat/completions`` and ``/v1/completions``: from a body to a running generation and its dialect."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import RequestError
from ..core.sampling_params import SamplingParams
from ..engine.input_processor import PreparedRequest, check_generates
from .answer_plan import AnswerRequest
from .chat import ChatCollector, ChatStream, alternatives, last_text, template_options, template_variables
from .completions import DEFAULT_MAX_TOKENS, MAX_COMPLETIONS, CompletionCollector, CompletionStream, split_prompts
from .context import ServerContext
from .fields import CHAT_FIELDS, COMPLETION_FIELDS
from .generation import Generation
from .openapi import GENERATION_ERRORS, Route
from .prompts import TokensPrompt
from .protocol import ChatCompletionRequest, CompletionRequest
from .protocol_answers import ChatCompletion, Completion
from .sampling import check_logprobs, check_stream_options, sampling_params
from .streaming import CollectedResponse, EventStreamResponse
from .structured import structured_field
from .tools.tool_use import ToolUse, tool_use


class GenerationEndpoints:
    """The endpoints that generate text."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._chat_bodies = context.bodies(CHAT_FIELDS)
        self._completion_bodies = context.bodies(COMPLETION_FIELDS)
        chat = Route("POST", "/v1/chat/completions", self.chat_completions, ChatCompletion, CHAT_FIELDS)
        text = Route("POST", "/v1/completions", self.completions, Completion, COMPLETION_FIELDS)
        self.routes = [replace(route, errors=GENERATION_ERRORS, streams=True) for route in (chat, text)]

    async def chat_completions(self, request: Request) -> Response:
        """Answer a conversation."""
        asked, exchange = await self._context.accept(request, self._chat_bodies)
        check_stream_options(asked.stream, asked.stream_options)
        head, engine_id = self._context.answer_head("chatcmpl", asked.model, asked.request_id)
        generation = await self.chat_generation(asked, engine_id)
        if asked.stream:
            return EventStreamResponse(generation, ChatStream(head, generation, asked), exchange)
        return CollectedResponse(generation, ChatCollector(head, generation, asked), exchange)

    async def chat_generation(self, asked: ChatCompletionRequest, engine_id: str, *, clamp: bool = False) -> Generation:
        """A conversation, checked and ready to run, whatever dialect asked for it. Raises ``RequestError``.

        ``clamp``: asking for more tokens than the context leaves is no error, but means what it leaves.
        """
        check_generates(self._context.engine.config)
        self._context.encoder.check_length(asked.messages, "messages", "messages")
        tools = tool_use(asked.tools, asked.tool_choice, asked.parallel_tool_calls)
        self._context.answers.check(tools)
        if asked.top_logprobs and not asked.logprobs:
            raise RequestError.at("top_logprobs", "is only allowed with logprobs set to true")
        check_logprobs(
            self._context.engine.config, top_logprobs=asked.top_logprobs, prompt_logprobs=asked.prompt_logprobs
        )
        renamed = {"logprobs": "top_logprobs", "structured_outputs": structured_field(asked)}
        max_tokens = asked.max_tokens
        if asked.max_completion_tokens is not None:
            max_tokens = asked.max_completion_tokens
            renamed["max_tokens"] = "max_completion_tokens"
        params = sampling_params(
            asked,
            self._context.engine.config.model.default_sampling,
            max_tokens=max_tokens,
            logprobs=alternatives(asked),
            detokenize=True,
            renamed=renamed,
        )
        given = params.structured_outputs
        params = params.replace(structured_outputs=self._context.answers.constraint(tools, given))
        if tools is not None and (tools.forced or given is None):
            renamed["structured_outputs"] = "tools"
        reading = AnswerRequest(
            tools,
            include_reasoning=asked.include_reasoning is not False,
            constrained=given is not None,
            open_text=last_text(asked) if asked.continue_final_message else "",
        )
        if self._context.answers.needs_special_tokens(reading):
            params = params.replace(skip_special_tokens=False)
        text, ids = await self._chat_prompt(asked, tools, bounded=True)
        left = self._context.max_model_len - len(ids)
        if clamp and max_tokens is not None and 0 < left < max_tokens:
            params = params.replace(max_tokens=left)
        prompt: TokensPrompt = {"prompt_token_ids": ids, "prompt": text}
        prepared = await self._prepare_chat(prompt, params, asked.cache_salt, {"prompt": "messages"} | renamed, tools)
        splitters = self._context.answers.splitters(reading, text, params.n)
        return Generation(self._context.engine, engine_id, [prepared], splitters=splitters)

    async def count_chat(self, asked: ChatCompletionRequest) -> int:
        """Tokens of a conversation as the model would get it, be it over the context. Raises ``RequestError``."""
        tools = tool_use(asked.tools, asked.tool_choice, asked.parallel_tool_calls)
        return len((await self._chat_prompt(asked, tools, bounded=False))[1])

    async def _chat_prompt(
        self, asked: ChatCompletionRequest, tools: ToolUse | None, bounded: bool
    ) -> tuple[str, list[int]]:
        """The text and the ids of a conversation, ``bounded`` as in ``PromptEncoder.encode``."""
        template = template_options(asked, template_variables(asked))
        text = await self._context.render_chat(asked.messages, template, None if tools is None else tools.for_template)
        ids = await self._context.encoder.encode(text, bool(asked.add_special_tokens), "messages", bounded)
        return text, ids

    async def _prepare_chat(
        self,
        prompt: TokensPrompt,
        params: SamplingParams,
        cache_salt: str | None,
        renamed: dict[str, str],
        tools: ToolUse | None,
    ) -> PreparedRequest:
        """As ``ServerContext.prepare``. Where a forced function's schema cannot be enforced, what can be of it is: a
        function that is not strict asks for no more."""
        try:
            return await self._context.prepare(prompt, params, renamed, cache_salt)
        except RequestError as error:
            if error.param != "tools" or tools is None or tools.strict:
                raise
        params = params.replace(structured_outputs=self._context.answers.constraint(tools, None, loose=True))
        return await self._context.prepare(prompt, params, renamed, cache_salt)

    async def completions(self, request: Request) -> Response:
        """Continue one prompt or several."""
        asked, exchange = await self._context.accept(request, self._completion_bodies)
        check_stream_options(asked.stream, asked.stream_options)
        head, engine_id = self._context.answer_head("cmpl", asked.model, asked.request_id)
        check_generates(self._context.engine.config)
        check_logprobs(self._context.engine.config, logprobs=asked.logprobs, prompt_logprobs=asked.prompt_logprobs)
        if asked.max_tokens == 0 and not asked.echo:
            raise RequestError("max_tokens 0 only makes sense with echo, which scores the prompt", "max_tokens")
        prompts = await self._prompts(asked)
        params = self._completion_params(asked)
        renamed = {"structured_outputs": structured_field(asked)}
        prepared = [
            await self._context.prepare(prompt, self._fitting(params, asked, prompt), renamed, asked.cache_salt)
            for prompt in prompts
        ]
        generation = Generation(self._context.engine, engine_id, prepared, discard_output=asked.max_tokens == 0)
        echoes = self._echoes(asked, prompts)
        if asked.stream:
            return EventStreamResponse(generation, CompletionStream(head, generation, asked, echoes), exchange)
        return CollectedResponse(generation, CompletionCollector(head, generation, asked, echoes), exchange)

    async def _prompts(self, asked: CompletionRequest) -> list[TokensPrompt]:
        encoder = self._context.encoder
        texts, lists = split_prompts(asked.prompt)
        prompts: list[TokensPrompt] = []
        if texts:
            ids_of_texts = await encoder.encode_all(texts, asked.add_special_tokens is not False, "prompt")
            for text, ids in zip(texts, ids_of_texts, strict=True):
                prompts.append({"prompt_token_ids": ids, "prompt": text})
        for ids in lists:
            encoder.check_length(ids, "prompt")
            prompts.append({"prompt_token_ids": ids, "prompt": None})
        if any(not prompt["prompt_token_ids"] for prompt in prompts):
            raise RequestError.at("prompt", "must not be empty: there is no token to continue from")
        if len(prompts) * (asked.n or 1) > MAX_COMPLETIONS:
            raise RequestError(
                f"{len(prompts)} prompts with n {asked.n or 1} are over the limit of {MAX_COMPLETIONS} completions", "n"
            )
        return prompts

    def _completion_params(self, asked: CompletionRequest) -> SamplingParams:
        prompt_logprobs = asked.prompt_logprobs
        if asked.echo and asked.logprobs is not None:
            prompt_logprobs = max(asked.logprobs, prompt_logprobs or 0)
        params = sampling_params(
            asked,
            self._context.engine.config.model.default_sampling,
            # For max_tokens 0 the one token that an engine must generate is thrown away.
            max_tokens=DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens or 1,
            logprobs=asked.logprobs,
            detokenize=self._context.engine.tokenizer is not None,
        )
        return params if prompt_logprobs is None else params.replace(prompt_logprobs=prompt_logprobs)

    def _fitting(self, params: SamplingParams, asked: CompletionRequest, prompt: TokensPrompt) -> SamplingParams:
        """The default length never makes a prompt too long that would fit without it."""
        left = self._context.max_model_len - len(prompt["prompt_token_ids"])
        if asked.max_tokens is None and left < DEFAULT_MAX_TOKENS:
            return params.replace(max_tokens=left if left > 0 else None)
        return params

    def _echoes(self, asked: CompletionRequest, prompts: list[TokensPrompt]) -> list[str] | None:
        if not asked.echo:
            return None
        texts = []
        for prompt in prompts:
            text = prompt["prompt"]
            if text is None:
                skip = asked.skip_special_tokens is not False
                text = self._context.encoder.tokenizer.decode(prompt["prompt_token_ids"], skip)
            texts.append(text)
        return texts
