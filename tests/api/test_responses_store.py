"""Kept responses: going on from them, reading, deleting, and the bounds of the store."""

import pytest
from named_events import plain_of, prompt_text, stream_of
from stub_app import StubApp, check_error, run, strict_json
from stub_engine import StubEngine

from octavo.api.responses.items import output_as_input
from octavo.api.responses.protocol import InputItem, OutputMessage, OutputText, ResponseObject
from octavo.api.responses.store import ResponseStore, StoredResponse, UnknownResponseError

RESPONSES = "/v1/responses"


def call(app: StubApp, method: str, path: str) -> tuple[int, dict]:
    """Status and body."""

    async def send() -> tuple[int, dict]:
        async with app.client() as client:
            response = await client.request(method, path)
        return response.status_code, strict_json(response.content)

    return run(send())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_goes_on_from_an_earlier_one_without_its_instructions(streamed: bool) -> None:
    app = StubApp()
    body = {"input": "one", "instructions": "first only"}
    first = stream_of(app, RESPONSES, body)[-1]["response"] if streamed else plain_of(app, RESPONSES, body)
    second = plain_of(app, RESPONSES, {"input": "two", "previous_response_id": first["id"], "instructions": "now"})
    assert second["previous_response_id"] == first["id"]
    turns = ["system\nnow", "user\none", "assistant\nHello world", "user\ntwo"]
    assert prompt_text(app) == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    plain_of(app, RESPONSES, {"input": "three", "previous_response_id": second["id"]})
    turns = [*turns[1:], "assistant\nHello world", "user\nthree"]
    assert prompt_text(app) == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_kept_response_is_read_as_it_was_told_until_it_is_deleted(streamed: bool) -> None:
    app = StubApp()
    told = stream_of(app, RESPONSES, {"input": "a"})[-1]["response"] if streamed else plain_of(
        app, RESPONSES, {"input": "a"}
    )  # fmt: skip
    path = f"{RESPONSES}/{told['id']}"
    assert call(app, "GET", path) == (200, told)
    assert call(app, "DELETE", path) == (200, {"id": told["id"], "object": "response", "deleted": True})
    for method in ("GET", "DELETE"):
        status, body = call(app, method, path)
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "response_not_found", "response_id")
    going_on = run(app.post(RESPONSES, {"input": "b", "previous_response_id": told["id"], "stream": streamed}))
    error = check_error(going_on, 400, "previous_response_id")
    assert (error["type"], error["code"]) == ("invalid_request_error", "previous_response_not_found")


def test_a_response_that_is_not_stored_is_not_found() -> None:
    app = StubApp()
    answer = plain_of(app, RESPONSES, {"input": "a", "store": False})
    assert answer["store"] is False and call(app, "GET", f"{RESPONSES}/{answer['id']}")[0] == 404
    off = StubApp(responses_store_size=0)
    answer = plain_of(off, RESPONSES, {"input": "a", "store": True})
    status, body = call(off, "GET", f"{RESPONSES}/{answer['id']}")
    assert answer["store"] is False and status == 404 and "--responses-store-size 0" in body["error"]["message"]


def test_a_failed_response_is_not_kept() -> None:
    app = StubApp(StubEngine(fail_after=2))
    failed = stream_of(app, RESPONSES, {"input": "a"})[-2]["response"]
    assert call(app, "GET", f"{RESPONSES}/{failed['id']}")[0] == 404


def test_cancelling_is_refused_since_no_response_is_in_the_background() -> None:
    app = StubApp()
    answer = plain_of(app, RESPONSES, {"input": "a"})
    status, body = call(app, "POST", f"{RESPONSES}/{answer['id']}/cancel")
    assert status == 400 and "background" in body["error"]["message"]
    assert call(app, "POST", f"{RESPONSES}/resp_none/cancel")[0] == 404
    status, body = call(app, "GET", f"{RESPONSES}/{answer['id']}?stream=true")
    assert (status, body["error"]["param"]) == (400, "stream")


def test_input_items_are_listed_in_pages_and_are_the_responses_own() -> None:
    app = StubApp()
    first = plain_of(app, RESPONSES, {"input": "zero"})
    items = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    answer = plain_of(app, RESPONSES, {"input": items, "previous_response_id": first["id"]})
    path = f"{RESPONSES}/{answer['id']}/input_items"
    _, page = call(app, "GET", f"{path}?limit=2")
    assert [item["content"][0]["text"] for item in page["data"]] == ["c", "b"]
    assert page["has_more"] and page["last_id"] == page["data"][-1]["id"]
    assert page["data"][1]["content"][0]["type"] == "output_text" and page["data"][0]["type"] == "message"
    _, rest = call(app, "GET", f"{path}?limit=2&after={page['last_id']}")
    assert [item["content"][0]["text"] for item in rest["data"]] == ["a"] and not rest["has_more"]
    _, ordered = call(app, "GET", f"{path}?order=asc")
    assert [item["content"][0]["text"] for item in ordered["data"]] == ["a", "b", "c"]
    for query in ("limit=0", "limit=x", "after=nobody", "order=foo"):
        assert call(app, "GET", f"{path}?{query}")[0] == 400


def stored(text: str) -> StoredResponse:
    """A kept answer with this text."""
    answer = ResponseObject(
        id="r", created_at=0, model="m", reasoning={}, store=True, temperature=1.0, text={}, top_p=1.0, metadata={}
    )
    answer.output.append(OutputMessage(id="m", content=[OutputText(text=text)]))
    return StoredResponse.of(answer, [InputItem(role="user", content="q")], 1)


def test_the_least_recently_used_response_goes_first() -> None:
    store = ResponseStore(2, 1 << 20)
    store.put("a", stored("1"))
    store.put("b", stored("2"))
    store.get("a", "id")
    store.put("c", stored("3"))
    store.get("a", "id")
    store.get("c", "id")
    with pytest.raises(UnknownResponseError):
        store.get("b", "id")


def test_the_store_keeps_to_its_bytes_and_counts_them_exactly() -> None:
    size = stored("x").size
    store = ResponseStore(100, 3 * size)
    for number in range(10):
        store.put(str(number), stored("x"))
    assert len(store) == 3 and store.num_bytes == 3 * size
    store.put("large", stored("y" * 4 * size))
    assert len(store) == 3
    store.put("middle", stored("y" * (size // 2)))
    assert store.num_bytes <= 3 * size
    for name in ("8", "9", "middle"):
        if name in ("9", "middle"):
            store.delete(name)
    assert store.num_bytes == size * len(store)


def test_what_was_said_is_input_again_without_what_only_answers_carry() -> None:
    (item,) = output_as_input([OutputMessage(id="m", status="completed", content=[OutputText(text="t")])])
    assert (item.type, item.role, item.id) == ("message", "assistant", "m")
    assert isinstance(item.content, list) and item.content[0].text == "t"
