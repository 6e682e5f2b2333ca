"""What users see of the scheduler: fairness, preemption, reuse, reasons, and what a step costs."""

import sys
from collections import Counter
from types import FrameType
from typing import Any

import numpy as np
import pytest
from simulation import VOCAB, Simulation, continuation, make_config

from octavo.core.engine_input import EngineCoreRequest
from octavo.core.errors import ConfigurationError
from octavo.core.sampling_params import SamplingParams


def steady(num_running: int, overlap: bool) -> Simulation:
    """An engine where so many requests decode, far from any block border."""
    config = make_config(
        num_blocks=2000, block_size=64, max_num_seqs=512, budget=4096, max_model_len=128, overlap=overlap, check=False
    )
    simulation = Simulation(config)
    for handle in range(num_running):
        simulation.add(handle, [handle % VOCAB, 1, 2], max_tokens=100)
    for _ in range(8):
        simulation.step()
    assert len(simulation.scheduler.decoding) == num_running
    return simulation


def lines_run_by_a_step(simulation: Simulation) -> Counter[str]:
    """Lines of Python that one step executes in core/, by function. The simulated worker's are not counted."""
    counts: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "/core/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            counts[frame.f_code.co_qualname] += 1
        return trace

    sys.settrace(trace)
    try:
        simulation.core.step()
    finally:
        sys.settrace(None)
    return counts


@pytest.mark.parametrize("overlap", [False, True])
def test_a_steady_decode_step_costs_the_same_however_many_requests_run(overlap: bool) -> None:
    few = lines_run_by_a_step(steady(4, overlap))
    many = lines_run_by_a_step(steady(400, overlap))
    assert few == many
    assert 0 < sum(many.values()) < 300


def test_a_steady_decode_step_tells_the_worker_nothing_new() -> None:
    simulation = steady(32, overlap=True)
    simulation.executor.keep_steps = True
    simulation.step()
    (step,) = simulation.executor.steps
    assert (step.new, step.blocks, step.released, step.chunks, step.decodes) == ([], [], [], [], None)


def test_preempted_requests_resume_with_the_same_tokens() -> None:
    simulation = Simulation(make_config(num_blocks=17, block_size=4, max_num_seqs=4, max_model_len=64, budget=64))
    prompts = [[handle] * 8 for handle in range(4)]
    for handle, prompt in enumerate(prompts):
        simulation.add(handle, prompt, max_tokens=40, seed=handle)
    simulation.run()
    assert simulation.scheduler.num_preemptions > 0
    for handle, prompt in enumerate(prompts):
        assert simulation.outputs[handle] == continuation(prompt, 40, handle, VOCAB)
    simulation.assert_all_free()


def test_the_victim_is_the_one_that_loses_least() -> None:
    simulation = Simulation(make_config(num_blocks=13, block_size=4, max_num_seqs=4, budget=64, overlap=False))
    simulation.add(0, [1] * 16, max_tokens=30)
    simulation.step()
    simulation.add(1, [2] * 12, max_tokens=30)
    while not simulation.scheduler.num_preemptions:
        simulation.step()
    (waiting,) = simulation.scheduler.waiting
    assert waiting.request_id == "r1"
    assert waiting.events[-2].kind == "preempted" or waiting.events[-1].kind == "preempted"


def test_of_equals_the_victim_is_the_one_admitted_last() -> None:
    simulation = Simulation(make_config(num_blocks=13, block_size=4, max_num_seqs=4, budget=64, overlap=False))
    simulation.add(0, [1] * 15, max_tokens=30)
    simulation.step()
    simulation.add(1, [2] * 16, max_tokens=30)  # as long as the first one is when it joins
    while not simulation.scheduler.num_preemptions:
        simulation.step()
    assert [request.request_id for request in simulation.scheduler.waiting] == ["r1"]


def test_rows_decode_longest_first_whenever_they_joined() -> None:
    simulation = Simulation(make_config(num_blocks=200, block_size=4, max_num_seqs=8, budget=64, overlap=False))
    simulation.executor.keep_steps = True
    for handle, length in enumerate((4, 30, 15, 25)):
        simulation.add(handle, [handle] * length, max_tokens=40)
        simulation.step()
        simulation.step()
    slots = simulation.scheduler.slots
    rows = simulation.scheduler.decoding
    assert [slots.request_at(slot).request_id for slot in rows] == ["r1", "r3", "r2", "r0"]
    told = [step.decodes.tolist() for step in simulation.executor.steps if step.decodes is not None]
    assert told[-1] == rows.tolist()


@pytest.mark.parametrize(("policy", "victim"), [("priority", "r0"), ("fcfs", "r1")])
def test_priority_decides_before_lost_work_if_that_is_the_policy(policy: str, victim: str) -> None:
    simulation = Simulation(
        make_config(num_blocks=13, block_size=4, max_num_seqs=4, budget=64, overlap=False, policy=policy)
    )
    simulation.add(0, [1] * 16, max_tokens=30, priority=5)
    simulation.step()
    simulation.add(1, [2] * 12, max_tokens=30, priority=0)
    while not simulation.scheduler.num_preemptions:
        simulation.step()
    assert [request.request_id for request in simulation.scheduler.waiting] == [victim]


def test_running_requests_get_a_token_in_every_step_beside_a_long_prompt() -> None:
    simulation = Simulation(make_config(num_blocks=600, max_model_len=1024, budget=64, max_num_seqs=8, overlap=False))
    simulation.add(0, [1, 2, 3], max_tokens=200)
    simulation.step()
    simulation.add(1, list(range(VOCAB)) * 10, max_tokens=4)
    simulation.add(2, [7, 7, 7], max_tokens=4)
    got = []
    while 1 not in simulation.first_step:
        before = len(simulation.outputs[0])
        simulation.step()
        got.append(len(simulation.outputs[0]) - before)
    assert len(got) >= 15 and set(got) == {1}
    assert simulation.first_step[2] < simulation.first_step[1], "a short prompt waits for a long one's whole prefill"
    simulation.run()
    assert simulation.outputs[1] == continuation(list(range(VOCAB)) * 10, 4, 0, VOCAB)


@pytest.mark.parametrize("length", [4, 8, 9, 7, 1])
def test_a_repeated_prompt_hits_whole_blocks_but_never_its_last_token(length: int) -> None:
    simulation = Simulation(make_config(block_size=4))
    prompt = [(5 * i) % VOCAB for i in range(length)]
    for handle in range(3):
        simulation.add(handle, prompt, max_tokens=8)
        simulation.run()
    assert simulation.cached[0] == 0
    assert simulation.cached[1] == simulation.cached[2] == (length - 1) // 4 * 4
    assert simulation.outputs[0] == simulation.outputs[1] == simulation.outputs[2]


def test_siblings_that_arrive_together_share_their_prompt() -> None:
    simulation = Simulation(make_config(block_size=4, budget=64))
    for handle in range(3):
        simulation.add(handle, [9] * 17, max_tokens=6, seed=handle)
    simulation.run()
    assert [simulation.cached[handle] for handle in range(3)] == [0, 16, 16]
    for handle in range(3):
        assert simulation.outputs[handle] == continuation([9] * 17, 6, handle, VOCAB)


def test_different_salts_never_share() -> None:
    simulation = Simulation(make_config(block_size=4))
    for handle, salt in enumerate([None, "a", "b", "a"]):
        simulation.add(handle, [3] * 13, salt=salt)
        simulation.run()
    assert [simulation.cached[handle] for handle in range(4)] == [0, 0, 0, 12]


def test_a_refused_request_says_what_it_waits_for() -> None:
    simulation = Simulation(make_config(num_blocks=9, block_size=4, max_model_len=32, overlap=False))
    simulation.add(0, [1] * 20, max_tokens=8)
    simulation.add(1, [2] * 24, max_tokens=8)
    for _ in range(3):
        simulation.step()
    (waiting,) = simulation.scheduler.waiting
    assert [event.kind for event in waiting.events] == ["queued", "refused"]
    assert waiting.events[-1].reason == "needs 6 blocks, 2 free"


def test_a_full_house_is_a_sequence_limit() -> None:
    simulation = Simulation(make_config(max_num_seqs=1, overlap=False))
    simulation.add(0, [1, 2], max_tokens=8)
    simulation.add(1, [3, 4], max_tokens=8)
    simulation.step()
    (waiting,) = simulation.scheduler.waiting
    assert waiting.events[-1].reason == "sequence limit: 1 running"


def test_an_abort_between_two_overlapping_steps_frees_everything_once() -> None:
    for when in range(1, 8):
        simulation = Simulation(make_config(num_blocks=17, block_size=4, overlap=True))
        simulation.add(0, [1] * 9, max_tokens=20)
        simulation.add(1, [1] * 9, max_tokens=20)
        for _ in range(when):
            simulation.step()
        assert simulation.scheduler.abort(0, 0)
        assert not simulation.scheduler.abort(0, 0)
        simulation.scheduler.check_integrity()
        simulation.add(2, [1] * 9, max_tokens=20)
        simulation.run()
        assert simulation.outputs[1] == simulation.outputs[2] == continuation([1] * 9, 20, 0, VOCAB)
        simulation.assert_all_free()


def test_blocks_of_an_aborted_request_stay_held_until_the_batch_in_flight_is_done() -> None:
    simulation = Simulation(make_config(num_blocks=17, block_size=4, overlap=True, caching=False))
    simulation.add(0, [1] * 9, max_tokens=20)
    simulation.step()
    pool = simulation.scheduler.kv.pool
    before = pool.num_free
    simulation.scheduler.abort(0, 0)
    assert pool.num_free == before and simulation.scheduler.kv.num_retiring == 3
    simulation.step()
    assert pool.num_free == before + 3 and simulation.scheduler.kv.num_retiring == 0


def test_a_resumed_request_goes_on_where_it_stopped() -> None:
    whole = continuation([4, 5, 6], 12, 3, VOCAB)
    simulation = Simulation(make_config())
    simulation.add(0, [4, 5, 6], max_tokens=12, seed=3, output=whole[:5])
    simulation.run()
    assert simulation.outputs[0] == whole[5:]
    assert simulation.finished[0] == "length"


def test_a_request_that_is_sent_again_while_it_is_known_runs_once() -> None:
    simulation = Simulation(make_config())
    for _ in range(2):
        simulation.add(0, [4, 5, 6], max_tokens=12, seed=3)
    simulation.run()
    assert simulation.outputs[0] == continuation([4, 5, 6], 12, 3, VOCAB)
    simulation.assert_all_free()


def test_end_tokens_and_stop_tokens_are_told_apart() -> None:
    tokens = continuation([8, 8], 20, 0, VOCAB)
    simulation = Simulation(make_config())
    first = tokens[4]
    simulation.add(0, [8, 8], max_tokens=20, eos=[first])
    simulation.add(1, [8, 8], max_tokens=20, stop_token_ids=[first])
    simulation.run()
    assert simulation.finished == {0: "stop", 1: "stop"}
    assert simulation.stop_tokens == {0: None, 1: first}
    assert simulation.outputs[0] == tokens[: tokens.index(first) + 1]


def test_end_tokens_do_not_end_before_min_tokens() -> None:
    simulation = Simulation(make_config())
    simulation.add(0, [8, 8], max_tokens=12, eos=list(range(VOCAB - 1)), min_tokens=6)
    simulation.run()
    assert len(simulation.outputs[0]) >= 7


def test_each_client_hears_only_of_its_own_requests() -> None:
    simulation = Simulation(make_config(), num_clients=2)
    simulation.add(0, [1], client=0)
    simulation.add(1, [2], client=1)
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    while simulation.core.has_work:
        for client, message in enumerate(simulation.step()):
            seen[client] |= set(np.frombuffer(message.handles, dtype=np.int32).tolist())
    assert seen == {0: {0}, 1: {1}}


def test_two_clients_may_give_requests_the_same_handle() -> None:
    core = Simulation(make_config(), num_clients=2).core
    for client in (0, 1):
        ids = np.array([client, 5], dtype=np.int32).tobytes()
        core.add_request(core.prepare(EngineCoreRequest("r", 7, client, ids, SamplingParams(), 1, 4, 0.0)))
    started: list[list[int]] = [[], []]
    ended: list[list[int]] = [[], []]
    while core.has_work:
        for client, message in enumerate(core.step()):
            started[client] += [start.handle for start in message.started]
            ended[client] += [end.handle for end in message.finished]
    assert started == ended == [[7], [7]]


def test_a_context_that_the_pool_cannot_hold_is_cut_or_refused() -> None:
    import msgspec

    config = make_config(num_blocks=5, block_size=4, max_model_len=64)
    assert Simulation(config).core.ready.max_model_len == 16
    with pytest.raises(ConfigurationError, match="at most 16"):
        Simulation(msgspec.structs.replace(config, max_model_len_given=True))
