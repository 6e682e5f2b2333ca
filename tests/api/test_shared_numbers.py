"""Numbers of several processes: each writes its own, all read the sum. Here a process is a view of the memory."""

import os
from collections.abc import Iterator

import pytest

from octavo.api.open_requests import OpenRequests
from octavo.api.shared_numbers import SharedNumbers
from octavo.core.errors import OverloadedError


@pytest.fixture
def two() -> Iterator[tuple[SharedNumbers, SharedNumbers]]:
    first = SharedNumbers(2)
    assert first.fd is not None
    yield first, SharedNumbers(2, 1, first.fd)
    os.close(first.fd)


def test_a_server_of_one_process_opens_no_file() -> None:
    assert SharedNumbers().fd is None


def test_every_process_sees_the_sum_and_writes_only_its_own(two: tuple[SharedNumbers, SharedNumbers]) -> None:
    columns = [numbers.take(3) for numbers in two]
    assert columns == [0, 0] and [numbers.take() for numbers in two] == [3, 3]
    two[0].own[1] += 2.5
    two[1].own[1] += 4
    assert [numbers.total(1) for numbers in two] == [6.5, 6.5]
    assert (two[0].own[1], two[1].own[1], two[0].total(0), two[0].total(2)) == (2.5, 4.0, 0.0, 0.0)


def test_the_limit_of_open_requests_holds_over_all_processes(two: tuple[SharedNumbers, SharedNumbers]) -> None:
    here, there = (OpenRequests(4, numbers) for numbers in two)
    three = here.add(3)
    there.add(1)
    for requests in (here, there):
        with pytest.raises(OverloadedError, match="4 completions run or wait, the limit is 4"):
            requests.add()
    here.remove(three)
    assert there.completions == 1 and len(here) == 0
    there.add(2)
    assert here.completions == 3
